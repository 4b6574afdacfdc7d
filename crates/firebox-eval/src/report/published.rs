//! Accuracies that others have published on sets of the UCR and UEA archives, on the archives' own split:
//! the one place where they stand.
//!
//! | method | figures taken from |
//! |---|---|
//! | MLP, FCN, ResNet | github.com/hfawaz/dl-4-tsc, results of Fawaz et al., "Deep learning for time series classification: a review", 2019 |
//! | InceptionTime | github.com/hfawaz/InceptionTime, Fawaz et al., 2020: an ensemble of five networks |
//! | T-Loss | github.com/White-Link/UnsupervisedScalableRepresentationLearningTimeSeries, Franceschi et al., 2019: frozen encoder, SVM |
//! | 1-NN DTW, and all figures of UEA sets | github.com/moment-timeseries-foundation-model/moment-research, Goswami et al., 2024, where each method's own paper is named |
//!
//! They are for orientation: nothing is tuned on the test sets that they are of.

/// What methods reached on one set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Name of the set.
    pub set: &'static str,
    /// `UCR`, of one channel, or `UEA`, of several.
    pub archive: &'static str,
    /// Method and test accuracy.
    pub accuracies: &'static [(&'static str, f64)],
}

/// All sets of which figures are kept here.
pub const PUBLISHED: [Published; 6] = [
    Published {
        set: "GunPoint",
        archive: "UCR",
        accuracies: &[
            ("MLP", 0.928),
            ("FCN", 1.0),
            ("ResNet", 0.991),
            ("InceptionTime", 1.0),
            ("T-Loss", 0.993),
            ("1-NN DTW", 0.907),
        ],
    },
    Published {
        set: "SyntheticControl",
        archive: "UCR",
        accuracies: &[
            ("MLP", 0.973),
            ("FCN", 0.989),
            ("ResNet", 0.997),
            ("InceptionTime", 0.997),
            ("T-Loss", 0.983),
            ("1-NN DTW", 0.993),
        ],
    },
    Published {
        set: "ItalyPowerDemand",
        archive: "UCR",
        accuracies: &[
            ("MLP", 0.953),
            ("FCN", 0.963),
            ("ResNet", 0.962),
            ("InceptionTime", 0.965),
            ("T-Loss", 0.925),
            ("1-NN DTW", 0.950),
        ],
    },
    Published {
        set: "ArrowHead",
        archive: "UCR",
        accuracies: &[
            ("MLP", 0.784),
            ("FCN", 0.843),
            ("ResNet", 0.838),
            ("InceptionTime", 0.846),
            ("T-Loss", 0.829),
            ("1-NN DTW", 0.703),
        ],
    },
    Published {
        set: "BasicMotions",
        archive: "UEA",
        accuracies: &[
            ("MOMENT", 1.0),
            ("TS2Vec", 0.975),
            ("T-Loss", 1.0),
            ("TS-TCC", 1.0),
            ("TST", 0.975),
            ("DTW", 0.975),
        ],
    },
    Published {
        set: "JapaneseVowels",
        archive: "UEA",
        accuracies: &[
            ("MOMENT", 0.716),
            ("TS2Vec", 0.984),
            ("T-Loss", 0.989),
            ("TS-TCC", 0.930),
            ("TST", 0.978),
            ("DTW", 0.949),
        ],
    },
];

/// The figures of a set, if any are kept here.
pub fn published(set: &str) -> Option<&'static Published> {
    PUBLISHED.iter().find(|published| published.set == set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_a_share_and_every_set_of_an_archive_has_the_same_methods() {
        for one in &PUBLISHED {
            assert!(one.accuracies.iter().all(|(_, share)| (0.5..=1.0).contains(share)));
            let methods = |one: &Published| one.accuracies.iter().map(|a| a.0).collect::<Vec<_>>();
            let same = PUBLISHED.iter().filter(|other| other.archive == one.archive);
            assert!(same.into_iter().all(|other| methods(other) == methods(one)));
        }
        assert!(published("GunPoint").is_some() && published("Nothing").is_none());
    }
}
