//! What the engine thread needs of a model.

/// A sequence's place in the model's KV store.
pub use linnet_compute::Slot;

/// One sequence's share of a step: its next `tokens`, which follow what the slot already holds.
#[derive(Debug, Clone)]
pub struct StepRow<'a> {
    /// The sequence.
    pub slot: Slot,
    /// The tokens to process, at least one.
    pub tokens: &'a [u32],
    /// Whether the logits after the last token are wanted.
    pub wants_logits: bool,
}

/// The size of a KV store that all sequences share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvBudget {
    /// Tokens that fit, a multiple of `page`.
    pub capacity: usize,
    /// Tokens of the unit in which a sequence takes room, at least 1.
    pub page: usize,
}

impl KvBudget {
    /// Room for any number of sequences.
    pub const UNLIMITED: Self = Self { capacity: usize::MAX, page: 1 };
}

/// A loaded model, driven step by step by its engine thread. Not `Send`: it is built on the thread that runs it.
pub trait StepModel {
    /// How many entries a row of logits has.
    fn vocabulary_size(&self) -> usize;

    /// The most tokens one sequence can hold.
    fn context_length(&self) -> usize;

    /// The most prompt tokens that one step should take, for this backend to run well.
    fn prefill_chunk(&self) -> usize;

    /// What the KV store holds for all sequences together. The engine keeps within it: requests wait, or are set back
    /// and their tokens processed again later, rather than run into [`StepModelError::KvFull`].
    fn kv_budget(&self) -> KvBudget {
        KvBudget::UNLIMITED
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// When no memory is left for one.
    fn open(&mut self) -> Result<Slot, StepModelError>;

    /// Drops a sequence and frees what it held. Unknown slots are ignored.
    fn close(&mut self, slot: Slot);

    /// Processes the rows and calls `logits(row, values)` for each row that wants them, in order. `values` may be
    /// changed freely by the caller; it has [`StepModel::vocabulary_size`] entries.
    ///
    /// # Errors
    /// On a failed computation or a full KV store. The slots of the rows are then undefined and must be closed.
    fn step(&mut self, rows: &[StepRow<'_>], logits: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), StepModelError>;
}

/// A step that could not be done.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StepModelError {
    /// The backend refused or failed.
    #[error("{0}")]
    Compute(String),
    /// The KV store has no room left.
    #[error(
        "the KV cache is full: {used} of {capacity} tokens are in use; close other conversations or raise --kv-tokens"
    )]
    KvFull {
        /// Tokens in use.
        used: usize,
        /// Tokens that fit.
        capacity: usize,
    },
    /// A computation panicked; this is a fault in Linnet.
    #[error("the engine met an internal fault: {0}; please report this")]
    Panicked(String),
    /// The model's output is no distribution: it holds NaN, or nothing finite.
    #[error("the model's logits are not numbers ({0}); its weights may be damaged: verify or import the model again")]
    InvalidLogits(&'static str),
    /// The tokenizer does not know a token that the model generated.
    #[error("token {token} has no text: {reason}; the tokenizer does not fit the model")]
    Detokenize {
        /// The token.
        token: u32,
        /// What the tokenizer said.
        reason: String,
    },
    /// The engine thread ended; the model must be loaded again.
    #[error("the engine stopped: {0}; load the model again")]
    EngineGone(String),
}
