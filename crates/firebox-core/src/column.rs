//! Numbers of a series: in memory, or wherever somebody else keeps them, such as in a mapped file.
//!
//! Nothing here maps a file: whoever does hands in a [`Backing`].

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Numbers that are kept elsewhere and may be lost, as those of a mapped file that shrinks.
pub trait Backing<T>: Send + Sync {
    /// All of them. What was lost reads as zeros.
    fn all(&self) -> &[T];

    /// Whether everything that was read so far was there.
    ///
    /// # Errors
    ///
    /// What was lost, as a sentence for the user.
    fn check(&self) -> Result<(), String>;
}

/// Numbers that are read like a slice. Whoever writes to numbers that are kept elsewhere gets a copy in
/// memory.
#[derive(Clone)]
pub struct Column<T>(Kept<T>);

#[derive(Clone)]
enum Kept<T> {
    Here(Vec<T>),
    Elsewhere(Arc<dyn Backing<T>>, Range<usize>),
}

impl<T> Column<T> {
    /// A part of numbers that are kept elsewhere.
    ///
    /// # Panics
    ///
    /// When they end before the range does.
    pub fn elsewhere(backing: Arc<dyn Backing<T>>, range: Range<usize>) -> Self {
        let found = backing.all().len();
        assert!(range.start <= range.end && range.end <= found, "{range:?} of {found} numbers");
        Self(Kept::Elsewhere(backing, range))
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[T] {
        match &self.0 {
            Kept::Here(numbers) => numbers,
            Kept::Elsewhere(backing, range) => &backing.all()[range.clone()],
        }
    }

    /// Whether they are kept elsewhere.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.0, Kept::Elsewhere(..))
    }

    /// Whether both are parts of the same numbers.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kept::Elsewhere(a, _), Kept::Elsewhere(b, _)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Whether everything that was read so far was there.
    ///
    /// # Errors
    ///
    /// What was lost.
    pub fn check(&self) -> Result<(), String> {
        match &self.0 {
            Kept::Here(_) => Ok(()),
            Kept::Elsewhere(backing, _) => backing.check(),
        }
    }
}

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self(Kept::Here(Vec::new()))
    }
}

impl<T> From<Vec<T>> for Column<T> {
    fn from(numbers: Vec<T>) -> Self {
        Self(Kept::Here(numbers))
    }
}

impl<T> FromIterator<T> for Column<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        Self(Kept::Here(numbers.into_iter().collect()))
    }
}

impl<T> Deref for Column<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T: Clone> DerefMut for Column<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if let Kept::Elsewhere(..) = self.0 {
            self.0 = Kept::Here(self.as_slice().to_vec());
        }
        match &mut self.0 {
            Kept::Here(numbers) => numbers,
            Kept::Elsewhere(..) => &mut [],
        }
    }
}

impl<'a, T> IntoIterator for &'a Column<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: PartialEq> PartialEq for Column<T> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: PartialEq> PartialEq<Vec<T>> for Column<T> {
    fn eq(&self, other: &Vec<T>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for Column<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: fmt::Debug> fmt::Debug for Column<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Far(Vec<i64>);

    impl Backing<i64> for Far {
        fn all(&self) -> &[i64] {
            &self.0
        }

        fn check(&self) -> Result<(), String> {
            Err("lost".to_owned())
        }
    }

    #[test]
    fn what_is_elsewhere_is_read_in_place_and_copied_when_written_to() {
        let far = Arc::new(Far((0..9).collect()));
        let mut column = Column::elsewhere(Arc::clone(&far) as Arc<dyn Backing<i64>>, 2..6);
        assert!(column == [2, 3, 4, 5] && column.as_slice().as_ptr() == far.0[2..].as_ptr());
        assert_eq!(column, Column::from(vec![2, 3, 4, 5]));
        assert_eq!(column.check(), Err("lost".to_owned()));
        column[1] = 7;
        assert!(column == vec![2, 7, 4, 5] && far.0[3] == 3 && !column.is_elsewhere());
        assert_eq!((column.check(), format!("{column:?}")), (Ok(()), "[2, 7, 4, 5]".to_owned()));
    }

    #[test]
    #[should_panic(expected = "7..10 of 9 numbers")]
    fn a_part_ends_before_the_whole_does() {
        Column::elsewhere(Arc::new(Far((0..9).collect())), 7..10);
    }
}
