//! Work on all processors whose results are taken in order.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use firebox_core::new_thread;

/// Does `work` with each job on so many threads, or as many as the system gives, and `take` with each result, in the order
/// of the jobs.
///
/// Twice as many jobs as there are threads are begun at most before the first of them is taken. After an error
/// no job is begun. A panic goes on in the caller.
///
/// # Errors
///
/// The first error in the order of the jobs, of `work` or of `take`.
pub(crate) fn in_turn<J, T: Send, E: Send>(
    threads: usize,
    jobs: impl ExactSizeIterator<Item = J> + Send,
    work: impl Fn(J) -> Result<T, E> + Sync,
    take: impl FnMut(T) -> Result<(), E> + Send,
) -> Result<(), E> {
    let threads = threads.clamp(1, jobs.len().max(1));
    let state = Turns { next: 0, done: BTreeMap::new(), take, ended: None };
    let (jobs, state, moved) = (Mutex::new(jobs.enumerate()), Mutex::new(state), Condvar::new());
    let run = || {
        let _end = EndOnPanic { state: &state, moved: &moved };
        loop {
            // In a statement of its own: the lock is not held while the work is done.
            let job = lock(&jobs).next();
            let Some((number, job)) = job else { return };
            let room = |state: &mut Turns<_, _, _>| {
                state.ended.is_none() && number >= state.next + 2 * threads
            };
            let waited = moved.wait_while(lock(&state), room);
            if waited.unwrap_or_else(PoisonError::into_inner).ended.is_some() {
                return;
            }
            let result = work(job);
            lock(&state).put(number, result);
            moved.notify_all();
        }
    };
    std::thread::scope(|scope| {
        let begin =
            |_| new_thread("firebox-data").and_then(|thread| thread.spawn_scoped(scope, run));
        // Without those that are refused, the caller's does more.
        let others: Vec<_> = (1..threads).flat_map(begin).collect();
        run();
        // With its own message, where the scope would say that some thread panicked.
        for thread in others {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.ended.flatten().map_or(Ok(()), Err)
}

struct Turns<T, E, F> {
    /// The job whose result is taken next.
    next: usize,
    done: BTreeMap<usize, Result<T, E>>,
    take: F,
    /// No more jobs: after an error, or a panic.
    ended: Option<Option<E>>,
}

impl<T, E, F: FnMut(T) -> Result<(), E>> Turns<T, E, F> {
    fn put(&mut self, number: usize, result: Result<T, E>) {
        self.done.insert(number, result);
        while self.ended.is_none()
            && let Some(result) = self.done.remove(&self.next)
        {
            self.next += 1;
            if let Err(error) = result.and_then(&mut self.take) {
                self.ended = Some(Some(error));
            }
        }
    }
}

/// Whoever waits for a thread that panics does not wait for ever.
struct EndOnPanic<'a, T, E, F> {
    state: &'a Mutex<Turns<T, E, F>>,
    moved: &'a Condvar,
}

impl<T, E, F> Drop for EndOnPanic<'_, T, E, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(self.state).ended.get_or_insert(None);
            self.moved.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use firebox_core::with_threads;

    use super::*;

    #[test]
    fn results_are_taken_in_order_whoever_is_done_first() {
        for threads in [1, 2, 5] {
            for jobs in [0, 1, 2, 3, 50] {
                let mut taken = vec![];
                let slow = |job: usize| {
                    std::thread::sleep(Duration::from_micros((job * 7919 % 5) as u64 * 300));
                    Ok::<_, ()>(job)
                };
                let put = |job| {
                    taken.push(job);
                    Ok(())
                };
                assert_eq!(in_turn(threads, 0..jobs, slow, put), Ok(()));
                assert_eq!(taken, (0..jobs).collect::<Vec<_>>(), "{threads} threads");
            }
        }
    }

    #[test]
    fn threads_that_are_refused_are_done_without() {
        for given in [0, 1, 3] {
            let mut taken = vec![];
            let put = |job| {
                taken.push(job);
                Ok::<_, ()>(())
            };
            assert_eq!(with_threads(given, || in_turn(4, 0..50, Ok, put)), Ok(()));
            assert_eq!(taken, (0..50).collect::<Vec<_>>(), "{given} threads");
        }
    }

    #[test]
    fn few_results_wait() {
        let (begun, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |job: usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            // The first is slow, and nothing can be taken before it.
            std::thread::sleep(Duration::from_millis(if job == 0 { 100 } else { 0 }));
            if job == 0 {
                most.store(begun.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            Ok::<_, ()>(())
        };
        assert_eq!(in_turn(3, 0..100, work, |()| Ok(())), Ok(()));
        assert!(most.into_inner() <= 6 && begun.into_inner() == 100);
    }

    #[test]
    fn an_error_ends_the_work() {
        let begun = AtomicUsize::new(0);
        let work = |job: usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            if job == 5 { Err(job) } else { Ok(job) }
        };
        assert_eq!(in_turn(2, 0..1000, work, |_| Ok(())), Err(5));
        assert!(begun.load(Ordering::SeqCst) < 20);
        let refuse = |job: usize| if job == 3 { Err(job) } else { Ok(()) };
        assert_eq!(in_turn(2, 0..1000, Ok, refuse), Err(3));
    }

    #[test]
    fn a_panic_goes_on_and_nobody_waits_for_ever() {
        for panicking in [0, 7] {
            let work = |job: usize| -> Result<(), ()> {
                assert!(job != panicking, "job {panicking}");
                Ok(())
            };
            let run = || in_turn(3, 0..100, work, |()| Ok(()));
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
            let message = panic.downcast_ref::<String>();
            assert!(message.is_some_and(|text| *text == format!("job {panicking}")), "{message:?}");
        }
    }
}
