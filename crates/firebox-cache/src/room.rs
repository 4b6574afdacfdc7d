//! What a disk still takes, asked before much is written.

use std::path::Path;

use crate::error::CacheError;

/// Bytes that any process may still write to the disk of a folder, quotas aside; none if the system does not say.
#[cfg(unix)]
pub fn free(folder: &Path) -> Option<u64> {
    use std::ffi::CString;
    use std::mem::MaybeUninit;
    use std::os::unix::ffi::OsStrExt as _;

    let folder = CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut about = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path ends with a zero, and the structure is plain numbers that zeros are valid for.
    let about = unsafe {
        let told = libc::statvfs(folder.as_ptr(), about.as_mut_ptr()) == 0;
        told.then(|| about.assume_init())
    }?;
    #[allow(clippy::unnecessary_cast, reason = "other systems have narrower numbers")]
    let [all, free, size] = [about.f_blocks as u64, about.f_bavail as u64, about.f_frsize as u64];
    // Some file systems of networks and programs count no blocks.
    (all > 0).then(|| free.saturating_mul(size))
}

/// Bytes that any process may still write to the disk of a folder; not asked here.
#[cfg(not(unix))]
pub fn free(_: &Path) -> Option<u64> {
    None
}

/// Refuses more than a disk has room for. `versions` counts the original, `record` is the bytes of one version, and
/// `free` is what the disk has, if that is known.
pub(crate) fn check(
    path: &Path,
    windows: usize,
    versions: u64,
    record: u64,
    free: Option<u64>,
) -> Result<(), CacheError> {
    let each = record.saturating_mul(windows as u64);
    let bytes = each.saturating_mul(versions);
    let Some(free) = free.filter(|free| *free < bytes) else { return Ok(()) };
    let most = (free / each.max(1)).saturating_sub(1);
    Err(CacheError::NoRoom { path: path.to_owned(), windows, versions, bytes, free, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_to_the_last_byte_is_made_and_one_byte_more_is_not() {
        let check = |free| check(Path::new("c"), 10, 5, 100, free);
        assert!(check(Some(5000)).is_ok() && check(None).is_ok());
        let said = check(Some(4999)).unwrap_err().to_string();
        assert!(said.contains("5000 bytes") && said.contains("4999 free"), "{said}");
        assert!(said.contains("there is room for 3") && said.contains("run.cache"), "{said}");
        assert!(check(Some(0)).unwrap_err().to_string().contains("there is room for 0"));
        let none = super::check(Path::new("c"), usize::MAX, u64::MAX, u64::MAX, Some(u64::MAX - 1));
        assert!(none.is_err(), "nothing overflows");
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_has_room_and_one_that_is_not_there_tells_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free(folder.path()).is_none_or(|free| free > 0));
        assert_eq!(free(&folder.path().join("none")), None);
    }
}
