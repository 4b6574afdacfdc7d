//! What holds on a thread for as long as a function runs.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs a function while a thread's cell has this value; it has the one before afterwards, also if the function panics.
pub(crate) fn while_set<V: 'static, T>(
    cell: &'static LocalKey<Cell<V>>,
    value: V,
    f: impl FnOnce() -> T,
) -> T {
    struct Restore<V: 'static>(&'static LocalKey<Cell<V>>, Option<V>);
    impl<V> Drop for Restore<V> {
        fn drop(&mut self) {
            if let Some(before) = self.1.take() {
                self.0.set(before);
            }
        }
    }
    let _restore = Restore(cell, Some(cell.replace(value)));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static HELD: Cell<u8> = const { Cell::new(1) };
    }

    #[test]
    fn the_value_before_is_there_again_also_after_a_panic() {
        assert_eq!(while_set(&HELD, 2, || HELD.get() + while_set(&HELD, 3, || HELD.get())), 5);
        assert_eq!(HELD.get(), 1);
        let panics = || while_set(&HELD, 4, || panic!("as asked"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(HELD.get(), 1);
    }
}
