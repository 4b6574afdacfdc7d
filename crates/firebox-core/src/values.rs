//! Values of a series: f64 in memory or in a mapped file, or a narrower type that somebody else keeps.
//!
//! What is kept in a narrower type is never widened as a whole: whoever computes with it gets it part by
//! part.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::Column;

/// Numbers of a narrower type than f64 that are kept elsewhere and may be lost, as those of a mapped file of
/// half precision.
pub trait Narrow: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Writes those from `start` on. What was lost reads as zeros.
    ///
    /// # Panics
    ///
    /// When they end before `out` does.
    fn read(&self, start: usize, out: &mut [f32]);

    /// Whether everything that was read so far was there.
    ///
    /// # Errors
    ///
    /// What was lost, as a sentence for the user.
    fn check(&self) -> Result<(), String>;

    /// Told that these are read soon.
    fn will_need(&self, range: Range<usize>) {
        let _ = range;
    }

    /// Bytes that each takes where it is kept.
    fn bytes_each(&self) -> usize {
        size_of::<f32>()
    }
}

/// Values that are widened at a time: the nearest caches hold them.
const AT_ONCE: usize = 2048;

/// Values of a series, read as f64 whatever type they are kept in.
#[derive(Clone)]
pub struct SeriesValues(Kept);

#[derive(Clone)]
enum Kept {
    Wide(Column<f64>),
    Narrow(Arc<dyn Narrow>, Range<usize>),
}

impl SeriesValues {
    /// A part of numbers that are kept elsewhere in a narrower type.
    ///
    /// # Panics
    ///
    /// When they end before the range does.
    pub fn narrow(kept: Arc<dyn Narrow>, range: Range<usize>) -> Self {
        let found = kept.count();
        assert!(range.start <= range.end && range.end <= found, "{range:?} of {found} numbers");
        Self(Kept::Narrow(kept, range))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match &self.0 {
            Kept::Wide(values) => values.len(),
            Kept::Narrow(_, range) => range.len(),
        }
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A value.
    ///
    /// # Panics
    ///
    /// When there is no such value.
    pub fn at(&self, index: usize) -> f64 {
        match &self.0 {
            Kept::Wide(values) => values[index],
            Kept::Narrow(kept, range) => {
                assert!(index < range.len(), "value {index} of {}", range.len());
                let mut value = [0.0];
                kept.read(range.start + index, &mut value);
                f64::from(value[0])
            }
        }
    }

    /// Some of the values; a copy if they are kept in a narrower type.
    ///
    /// # Panics
    ///
    /// When there are fewer.
    pub fn part(&self, range: Range<usize>) -> Cow<'_, [f64]> {
        if let Kept::Wide(values) = &self.0 {
            return Cow::Borrowed(&values[range]);
        }
        let mut all = Vec::with_capacity(range.len());
        self.rows(range, 1, |values| all.extend_from_slice(values));
        Cow::Owned(all)
    }

    /// All values; a copy if they are kept in a narrower type.
    pub fn all(&self) -> Cow<'_, [f64]> {
        self.part(0..self.len())
    }

    /// Gives out some of the values in their order, a few whole rows of `width` at a time.
    ///
    /// # Panics
    ///
    /// When there are fewer.
    pub fn rows(&self, range: Range<usize>, width: usize, mut take: impl FnMut(&[f64])) {
        let (kept, own) = match &self.0 {
            Kept::Wide(values) => return take(&values[range]),
            Kept::Narrow(kept, own) => (kept, own),
        };
        assert!(range.end <= own.len(), "{range:?} of {} values", own.len());
        let most = (AT_ONCE / width.max(1)).max(1) * width.max(1);
        let (mut read, mut wide) = (vec![0.0; most.min(range.len())], Vec::new());
        for start in range.clone().step_by(most) {
            let read = &mut read[..most.min(range.end - start)];
            kept.read(own.start + start, read);
            wide.clear();
            wide.extend(read.iter().map(|value| f64::from(*value)));
            take(&wide);
        }
    }

    /// The values, to be changed; a copy in memory if they are kept elsewhere.
    pub fn make_mut(&mut self) -> &mut [f64] {
        if let Kept::Narrow(..) = self.0 {
            self.0 = Kept::Wide(self.all().into_owned().into());
        }
        match &mut self.0 {
            Kept::Wide(values) => values,
            Kept::Narrow(..) => &mut [],
        }
    }

    /// Whether they are kept elsewhere.
    pub fn is_elsewhere(&self) -> bool {
        match &self.0 {
            Kept::Wide(values) => values.is_elsewhere(),
            Kept::Narrow(..) => true,
        }
    }

    /// Bytes that they take elsewhere; 0 if they are in memory.
    pub fn bytes_elsewhere(&self) -> u64 {
        let each = match &self.0 {
            Kept::Wide(values) if values.is_elsewhere() => size_of::<f64>(),
            Kept::Wide(_) => 0,
            Kept::Narrow(kept, _) => kept.bytes_each(),
        };
        self.len() as u64 * each as u64
    }

    /// Whether everything that was read so far was there.
    ///
    /// # Errors
    ///
    /// What was lost.
    pub fn check(&self) -> Result<(), String> {
        match &self.0 {
            Kept::Wide(values) => values.check(),
            Kept::Narrow(kept, _) => kept.check(),
        }
    }

    /// Tells whoever keeps them that these are read soon.
    pub fn will_need(&self, range: Range<usize>) {
        if let Kept::Narrow(kept, own) = &self.0 {
            kept.will_need(own.start + range.start..own.start + range.end);
        }
    }

    /// Whether both are parts of the same numbers, so that one check is for both.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kept::Wide(a), Kept::Wide(b)) => a.is_beside(b),
            (Kept::Narrow(a, _), Kept::Narrow(b, _)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Default for SeriesValues {
    fn default() -> Self {
        Self(Kept::Wide(Column::default()))
    }
}

impl From<Column<f64>> for SeriesValues {
    fn from(values: Column<f64>) -> Self {
        Self(Kept::Wide(values))
    }
}

impl From<Vec<f64>> for SeriesValues {
    fn from(values: Vec<f64>) -> Self {
        Column::from(values).into()
    }
}

impl FromIterator<f64> for SeriesValues {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Column::from_iter(values).into()
    }
}

impl PartialEq for SeriesValues {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

impl PartialEq<Vec<f64>> for SeriesValues {
    fn eq(&self, other: &Vec<f64>) -> bool {
        self.all() == other.as_slice()
    }
}

impl<const N: usize> PartialEq<[f64; N]> for SeriesValues {
    fn eq(&self, other: &[f64; N]) -> bool {
        self.all() == other.as_slice()
    }
}

impl fmt::Debug for SeriesValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all().fmt(f)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Values that are elsewhere, and whether they are all there.
    pub(crate) struct Far(pub(crate) Vec<f32>, pub(crate) Result<(), String>);

    impl Narrow for Far {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn read(&self, start: usize, out: &mut [f32]) {
            out.copy_from_slice(&self.0[start..start + out.len()]);
        }

        fn check(&self) -> Result<(), String> {
            self.1.clone()
        }
    }

    #[test]
    fn narrow_values_read_like_wide_ones_and_are_copied_when_written_to() {
        let far = (0..9000).map(|value| value as f32 + 0.5).collect();
        let far = Arc::new(Far(far, Err("lost".to_owned())));
        let wide: Vec<f64> = far.0[7..].iter().map(|value| f64::from(*value)).collect();
        let mut narrow = SeriesValues::narrow(Arc::clone(&far) as Arc<dyn Narrow>, 7..9000);
        let same = SeriesValues::from(wide.clone());
        assert!(narrow == wide && narrow == same);
        assert_eq!((narrow.len(), narrow.at(3), narrow.is_elsewhere()), (8993, 10.5, true));
        assert_eq!((narrow.bytes_elsewhere(), same.bytes_elsewhere()), (4 * 8993, 0));
        assert_eq!(*narrow.part(5..900), wide[5..900]);
        assert_eq!(narrow.check(), Err("lost".to_owned()));
        for width in [1, 3, 17, 5000] {
            let mut found = Vec::new();
            let range = width..width * (8993 / width);
            narrow.rows(range.clone(), width, |rows| {
                assert!(rows.len() % width == 0 && rows.len() <= AT_ONCE.max(width));
                found.extend_from_slice(rows);
            });
            assert_eq!(found, wide[range], "{width}");
        }
        narrow.make_mut()[0] = -1.0;
        assert_eq!((narrow.at(0), narrow.at(1), far.0[7]), (-1.0, 8.5, 7.5));
        assert!(!narrow.is_elsewhere());
    }

    #[test]
    #[should_panic(expected = "7..10 of 9 numbers")]
    fn a_part_ends_before_the_whole_does() {
        SeriesValues::narrow(Arc::new(Far(vec![0.0; 9], Ok(()))), 7..10);
    }
}
