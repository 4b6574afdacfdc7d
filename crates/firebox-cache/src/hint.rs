//! Hints to the processor and the system about memory that is used soon. They change nothing but the time
//! that it takes: nothing is read or written here, and nothing goes wrong without them.

/// Bytes of a cache line, the unit that the processor fetches.
const LINE: usize = 64;
/// Bytes of the records to come that are fetched while one is copied: about what can be copied in the time
/// that memory takes to answer.
const AHEAD: usize = 8 << 10;
/// Records fetched ahead, however small they are.
const MOST: usize = 16;
/// Beyond these bytes of a record, the processor's own prediction has caught on.
const FAR: usize = 4 << 10;

/// How many records of this size to [`fetch`] ahead of the one that is copied: at least one.
pub fn ahead(bytes: usize) -> usize {
    (AHEAD / bytes.max(1)).clamp(1, MOST)
}

/// Asks the processor for these values, as far as they are worth it.
pub fn fetch<T>(values: &[T]) {
    let bytes = size_of_val(values).min(FAR);
    #[cfg(target_arch = "x86_64")]
    for place in (0..bytes).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint that reads nothing, on an address within a slice; every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().cast::<i8>().add(place)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE);
}

/// Asks the system for large pages behind a vector that has room for more than it holds: memory that is
/// filled for the first time costs a fault for each page, and a random place in it a look into a table that
/// no processor has at hand as a whole.
pub fn large_pages<T>(memory: &mut Vec<T>) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: sysconf reads a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
        let start = (memory.as_mut_ptr() as usize).next_multiple_of(page);
        let end = memory.as_mut_ptr() as usize + memory.capacity() * size_of::<T>();
        if start < end {
            // SAFETY: whole pages that the vector's memory begins or lies in; the advice changes no value.
            unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_change_nothing() {
        assert_eq!([0, 1, 1680, 8192, 1 << 30].map(ahead), [16, 16, 4, 1, 1]);
        for numbers in [0, 1, 1000, 3_000_000] {
            let mut values = vec![1.5f32; numbers];
            large_pages(&mut values);
            fetch(&values);
            values.reserve(numbers);
            large_pages(&mut values);
            assert!(values.len() == numbers && values.iter().all(|value| *value == 1.5));
        }
    }
}
