//! What can go wrong between a source and a batch.

/// A batch that cannot be delivered, or a loader that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A batch size of zero.
    #[error("`batch_size` is 0; a batch holds at least one sample")]
    BatchSize,
    /// More threads than any machine has use for.
    #[error("`{key}` is {found}; it must be at most {most}")]
    TooMany {
        /// Key of the setting.
        key: &'static str,
        /// The value found.
        found: usize,
        /// The largest allowed.
        most: usize,
    },
    /// A window of blocks that cannot mix anything.
    #[error(
        "`shuffle.blocks` has blocks of {block} and a window of {window} samples; a block holds at least 1, and a window at least two blocks"
    )]
    Blocks {
        /// Samples of a block.
        block: usize,
        /// Samples of a window.
        window: usize,
    },
    /// Batches that the longest sample does not fit into.
    #[error(
        "`loader.tokens` is {tokens}, and the longest training sample has {longest} steps, which a batch must hold\n  \
         set it to {longest} or more, or leave it out"
    )]
    Tokens {
        /// Steps of a batch.
        tokens: usize,
        /// Steps of the longest sample, with its padding.
        longest: usize,
    },
    /// Data that cannot stay where it was asked to.
    #[error("`loader.resident` is \"{place}\", but {why}; set it to \"auto\" or \"stream\"")]
    NotResident {
        /// The place that was asked for.
        place: &'static str,
        /// Why not.
        why: String,
    },
    /// Pinned memory where there is none.
    #[error(
        "`loader.pin` is set, but the device has no pinned memory: CUDA and ROCm devices have some, and to a processor \
         nothing is uploaded; leave it out"
    )]
    Pin,
    /// Masking that cannot be.
    #[error(transparent)]
    Masking(#[from] crate::MaskingError),
    /// Nothing to load.
    #[error("the source has no sample")]
    Empty,
    /// More samples than an order can hold.
    #[error("the source has {0} samples; an epoch can order up to 4,294,967,295")]
    TooLarge(usize),
    /// A sample that cannot be read.
    #[error("sample {index} cannot be read")]
    Sample {
        /// Its index in the source.
        index: usize,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A source that says a sample is longer than it can be.
    #[error("sample {index} has {length} steps; the source holds up to {longest}")]
    Length {
        /// Its index in the source.
        index: usize,
        /// Steps that it says it has.
        length: u32,
        /// Steps of the longest.
        longest: usize,
    },
    /// A source that panicked.
    #[error("reading sample {index} panicked: {message}")]
    Panic {
        /// Index of the sample that was being read.
        index: usize,
        /// The message of the panic.
        message: String,
    },
    /// A loader thread that panicked outside of a sample.
    #[error("filling batch {batch} panicked: {message}")]
    Worker {
        /// The batch within its epoch.
        batch: u64,
        /// The message of the panic.
        message: String,
    },
    /// Whoever takes the batches was told to stop while none came.
    #[error("stopped while no batch came")]
    Stopped,
    /// The threads ended without a batch. It cannot happen unless a thread is killed from outside.
    #[error("the loader threads ended before batch {0} was delivered")]
    Lost(u64),
}
