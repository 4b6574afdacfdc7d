//! Readers of tables that panic: on types of columns that they do not know, and on some damaged files. What they say becomes
//! an error with the file's name. Some damage makes them ask for gigabytes, which ends the process where memory is limited;
//! for whoever tells of that, the name of the file stands where it can be read then.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use crate::input::Input;
use crate::{DataError, Format};

/// Readers that are being guarded.
static GUARDED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of a name that are noted, at most.
const LONGEST: usize = 1000;

/// The file of the reader that began last.
static NAME: Name = Name::new();

/// A name that can be read where nothing may be allocated or waited for.
struct Name {
    bytes: [AtomicU8; LONGEST],
    length: AtomicUsize,
    /// Held by who writes it, as several files may be begun and ended at once; not by who reads it.
    writing: Mutex<()>,
}

impl Name {
    const fn new() -> Self {
        Self {
            bytes: [const { AtomicU8::new(0) }; LONGEST],
            length: AtomicUsize::new(0),
            writing: Mutex::new(()),
        }
    }

    /// Notes the name of a file, with question marks for what would end a text of JSON, as far as there is room.
    fn set(&self, path: &Path) {
        self.clear();
        let is_odd = |letter: char| letter.is_control() || matches!(letter, '"' | '\\');
        let (mut length, mut room) = (0, self.bytes.as_slice());
        for letter in path.to_string_lossy().chars() {
            let letter = if is_odd(letter) { '?' } else { letter };
            let Some((own, rest)) = room.split_at_checked(letter.len_utf8()) else { break };
            let mut written = [0; 4];
            let written = letter.encode_utf8(&mut written).bytes();
            own.iter().zip(written).for_each(|(place, byte)| place.store(byte, Ordering::SeqCst));
            (length, room) = (length + own.len(), rest);
        }
        self.length.store(length, Ordering::SeqCst);
    }

    fn clear(&self) {
        self.length.store(0, Ordering::SeqCst);
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        let length = self.length.load(Ordering::SeqCst);
        self.bytes.iter().take(length).map(|byte| byte.load(Ordering::SeqCst))
    }
}

/// The name of the table that is being read, if one is, and of several that of the one that was begun last: in UTF-8, with
/// question marks for quotes, backslashes and control characters. For handlers of signals, as nothing is allocated.
pub fn being_read() -> impl Iterator<Item = u8> {
    NAME.bytes()
}

/// Counts a reader as long as it lives.
struct Guarding;

impl Guarding {
    fn new(path: &Path) -> Self {
        let _writing = NAME.writing.lock();
        GUARDED.fetch_add(1, Ordering::SeqCst);
        NAME.set(path);
        Self
    }
}

impl Drop for Guarding {
    fn drop(&mut self) {
        let _writing = NAME.writing.lock();
        if GUARDED.fetch_sub(1, Ordering::SeqCst) == 1 {
            NAME.clear();
        }
    }
}

/// Lets the panics of readers be told once, by the error that becomes of them, and not by the panic's own message, too: for
/// programs. All other panics are told as before.
pub fn quiet_readers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            let is_readers = panic.location().is_some_and(|place| place.file().contains("polars"));
            if !(is_readers && GUARDED.load(Ordering::SeqCst) > 0) {
                before(panic);
            }
        }));
    });
}

/// Reads something of a file; an error if whoever reads it panics.
pub(crate) fn guarded<T>(input: &Input, read: impl FnOnce() -> T) -> Result<T, DataError> {
    guarded_at(&input.path, input.format, read)
}

/// The same of a file of a format.
pub(crate) fn guarded_at<T>(
    path: &Path,
    format: Format,
    read: impl FnOnce() -> T,
) -> Result<T, DataError> {
    let _guarding = Guarding::new(path);
    // What was half done is not looked at again: the error ends the reading.
    catch_unwind(AssertUnwindSafe(read)).map_err(|panic| {
        if is_refused_thread(said(panic.as_ref())) {
            let why = "the system refused a thread, whose stack takes memory, too: raise the limits of memory (ulimit -v) and of processes (ulimit -u)";
            let refused = std::io::Error::new(std::io::ErrorKind::WouldBlock, why);
            return DataError::io("read", path)(refused);
        }
        let problem = format!(
            "its reader gave up ({}): a column of a type that it does not know, used or not, such as run-end-encoded values, \
             unions or views of lists, or damage; write the file anew without such columns",
            said(panic.as_ref())
        );
        DataError::malformed(path, format, problem)
    })
}

/// Whether a panic says that no thread could be begun.
fn is_refused_thread(said: &str) -> bool {
    ["WouldBlock", "Resource temporarily unavailable", "spawn thread"]
        .iter()
        .any(|sign| said.contains(sign))
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

#[cfg(test)]
mod tests {
    use firebox_core::Origin;

    #[test]
    fn a_refused_thread_is_no_damage() {
        let input = Input {
            path: "a.csv".into(),
            format: Format::Csv,
            origin: Origin::Train,
            within: String::new(),
        };
        let refused = guarded(&input, || {
            let error = std::io::Error::from_raw_os_error(11);
            panic!("called `Result::unwrap()` on an `Err` value: {error:?}");
        });
        let error: DataError = Result::<(), _>::unwrap_err(refused);
        let said = std::error::Error::source(&error).unwrap().to_string();
        assert!(!error.is_bad_input() && said.starts_with("the system refused a thread"), "{said}");
    }

    use super::*;
    use crate::Format;

    #[test]
    fn the_name_of_a_file_is_noted_as_text_within_quotes() {
        let name = Name::new();
        let noted = |path: &str| {
            name.set(Path::new(path));
            String::from_utf8(name.bytes().collect()).unwrap()
        };
        assert_eq!(noted("prices/größe.parquet"), "prices/größe.parquet");
        assert_eq!(noted("a \"b\"\n.parquet"), "a ?b??.parquet");
        assert_eq!(noted(&"é".repeat(600)), "é".repeat(500));
        assert_eq!(noted(&format!("x{}", "é".repeat(600))).len(), 999);
        name.clear();
        assert_eq!(name.bytes().count(), 0);
    }

    #[test]
    fn a_panic_is_an_error_with_the_name_of_the_file() {
        let input = Input {
            path: "a.parquet".into(),
            format: Format::Parquet,
            origin: Origin::Train,
            within: String::new(),
        };
        assert_eq!(guarded(&input, || 7).unwrap(), 7);
        let none: Option<u8> = std::hint::black_box(None);
        for read in [|| panic!("not yet"), || panic!("not {}", "yet")] {
            let said = guarded(&input, read).unwrap_err().to_string();
            let expected = "a.parquet is not a valid parquet file: its reader gave up (not yet): ";
            assert!(said.starts_with(expected), "{said}");
        }
        // One of another thread that is waited for.
        let other = || rayon::join(|| none.expect("a byte"), || 1);
        assert!(guarded(&input, other).unwrap_err().to_string().contains("(a byte)"));
        assert_eq!(GUARDED.load(Ordering::SeqCst), 0);
    }
}
