//! Augmentations and a content-addressed store of pre-augmented windows
