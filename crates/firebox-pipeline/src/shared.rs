//! What the trials of one worker share: results of stages that are the same for all of them, each made
//! once and held as long as one of them goes on or may follow.
//!
//! Results are found by their content keys, so what differs is never shared. A run by itself has a
//! store of its own, which it leaves empty.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use firebox_core::Key;
use firebox_monitor::Padding;

/// Results held at once; beyond them the one that was asked for longest ago is given up.
const MOST: usize = 5;

type Held = Arc<dyn Any + Send + Sync>;

/// A place for one result: whoever comes while it is made waits for it.
type Place = Mutex<Option<Held>>;

/// Places by what they hold and its key, each with the count of requests when it was last asked for.
#[derive(Default)]
struct Places {
    requests: u64,
    by_key: HashMap<(&'static str, Key), (u64, Arc<Place>)>,
}

/// What advice needs to know of a training set, found before training.
#[derive(Clone, Copy, Default)]
pub(crate) struct Noted {
    /// Samples of a block and of a window in which it would be shuffled if its pages are not to be read in random order.
    pub(crate) blocks: Option<[usize; 2]>,
    /// What of its batches is padding.
    pub(crate) padding: Option<Padding>,
    /// How many samples an epoch of it has; of several sets, the largest.
    pub(crate) samples: Option<usize>,
}

/// Results by their keys.
#[derive(Default)]
pub(crate) struct Shared {
    places: Mutex<Places>,
    keeps: bool,
    noted: Mutex<Noted>,
}

impl Shared {
    /// A store whose results are kept for those who come later.
    pub(crate) fn keeping() -> Self {
        Self { keeps: true, ..Self::default() }
    }

    /// The result of this key, made by `make` if it is not there, and whether it was there. A failure
    /// is not kept.
    pub(crate) fn get<T: Send + Sync + 'static, E>(
        &self,
        what: &'static str,
        key: Key,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Arc<T>, bool), E> {
        if !self.keeps {
            return Ok((Arc::new(make()?), false));
        }
        let place = self.place(what, key);
        let mut held = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = held.clone().and_then(|held| held.downcast::<T>().ok()) {
            return Ok((found, true));
        }
        let made = Arc::new(make()?);
        *held = Some(Arc::clone(&made) as Held);
        Ok((made, false))
    }

    /// Notes what advice needs to know of the training set.
    pub(crate) fn note(&self, noted: Noted) {
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = noted;
    }

    /// What was noted last.
    pub(crate) fn noted(&self) -> Noted {
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, what: &'static str, key: Key) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let Places { requests, by_key } = &mut *places;
        *requests += 1;
        let (at, place) = by_key.entry((what, key)).or_default();
        *at = *requests;
        let place = Arc::clone(place);
        while by_key.len() > MOST {
            let oldest = by_key.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| *key);
            let Some(oldest) = oldest else { break };
            by_key.remove(&oldest);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        Key::builder("test", 1).field("number", number.to_le_bytes()).finish()
    }

    #[test]
    fn a_result_is_made_once_and_only_for_its_key() {
        let shared = Shared::keeping();
        let get = |what, number, value: u64| {
            let (found, there) = shared.get(what, key(number), || Ok::<_, ()>(value)).unwrap();
            (*found, there)
        };
        assert_eq!(get("a", 1, 10), (10, false));
        assert_eq!(get("a", 1, 11), (10, true));
        assert_eq!(get("b", 1, 12), (12, false));
        assert_eq!(get("a", 2, 13), (13, false));
        assert!(shared.get("a", key(3), || Err::<u64, _>("no")).is_err());
        assert_eq!(get("a", 3, 14), (14, false));
        // The first four are asked for in this order; a sixth takes the place of the oldest.
        assert_eq!([get("b", 1, 0), get("a", 2, 0), get("a", 3, 0)].map(|one| one.1), [true; 3]);
        assert_eq!([get("c", 1, 15), get("d", 1, 17)], [(15, false), (17, false)]);
        assert_eq!(get("a", 1, 16), (16, false));
        let alone = Shared::default();
        let twice = [1, 2].map(|value| alone.get("a", key(1), || Ok::<_, ()>(value)).unwrap());
        assert_eq!(twice.map(|(value, there)| (*value, there)), [(1, false), (2, false)]);
    }

    #[test]
    fn who_comes_while_it_is_made_waits_for_it() {
        let shared = Shared::keeping();
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let make = || {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok::<_, ()>(made.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
                    };
                    assert_eq!(*shared.get("a", key(1), make).unwrap().0, 0);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
