//! Texts with labels, and with the places of their evidence: what is read, generated and learnt from.

/// Texts, each with every label's truth. All lists but `labels` and `empty` have one entry for each text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelledTexts {
    /// The texts.
    pub texts: Vec<String>,
    /// Names of the labels, none of which excludes another.
    pub labels: Vec<String>,
    /// Whether each label holds, `[text, label]`, row by row.
    pub truth: Vec<bool>,
    /// First byte of the evidence and the byte after its last, where there is evidence.
    pub spans: Vec<Option<[usize; 2]>>,
    /// What texts belong together by, such as their author.
    pub groups: Vec<Option<String>>,
    /// The row of each in its table, counted from 1.
    pub rows: Vec<usize>,
    /// Rows that were left out because they have no text.
    pub empty: Vec<usize>,
}

impl LabelledTexts {
    /// Number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The labels of one text, in the order of their names.
    pub fn row(&self, text: usize) -> &[bool] {
        let count = self.labels.len();
        &self.truth[text * count..][..count]
    }
}
