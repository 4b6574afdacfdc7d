//! How large a batch may be for the steps that an epoch is to have: the same in every kind of pipeline.

use super::search::SIZES;

/// Optimizer steps that an epoch keeps at least. The noise of a step of gradient descent goes by `N/B − 1` for batches of
/// `B` among `N` samples (Smith and Le, "A Bayesian perspective on generalization and stochastic gradient descent", 2018):
/// down to ten steps an epoch that is `N/B` within a tenth, as for smaller batches, and with one step an epoch nothing of
/// it is left. Ten is a choice.
const LEAST_STEPS: usize = 10;

/// An epoch, whose samples are to be enough for some steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch {
    pub(super) samples: usize,
    /// Batches of an optimizer step.
    accumulate: usize,
}

impl Epoch {
    /// Of so many samples, or of more than are ever tried.
    pub(super) fn new(samples: Option<usize>, accumulate: u64) -> Self {
        let accumulate = usize::try_from(accumulate).unwrap_or(usize::MAX).max(1);
        Self { samples: samples.unwrap_or(usize::MAX), accumulate }
    }

    /// The largest size that is tried: the smallest, or one that leaves [`LEAST_STEPS`].
    pub(super) fn most(self) -> usize {
        let each = self.samples / LEAST_STEPS / self.accumulate;
        1 << each.clamp(SIZES[0], SIZES[1]).ilog2()
    }

    /// Why no larger size is taken.
    pub(super) fn against(self, size: usize) -> String {
        let Self { samples, accumulate } = self;
        let of = match accumulate {
            1 => String::new(),
            batches => format!(" of {batches} batches"),
        };
        format!(
            "{size} would leave fewer than {LEAST_STEPS} full steps{of} in an epoch of {samples} samples"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_several_batches_are_as_many() {
        let epoch = |accumulate| Epoch::new(Some(3000), accumulate);
        assert_eq!([1, 2, 4, 1000, 0].map(|batches| epoch(batches).most()), [256, 128, 64, 4, 256]);
        let said = epoch(4).against(128);
        assert_eq!(
            said,
            "128 would leave fewer than 10 full steps of 4 batches in an epoch of 3000 samples"
        );
    }
}
