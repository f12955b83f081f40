//! What the engine thread needs of a model.

/// How the model chooses a token itself, and a sequence's place in its KV store.
pub use linnet_compute::{Draw, Slot};

use crate::KvStatus;

/// One sequence's share of a step: its next tokens, which follow what the slot already holds.
#[derive(Debug, Clone)]
pub struct StepRow<'a> {
    /// The sequence.
    pub slot: Slot,
    /// The tokens to process.
    pub tokens: RowTokens<'a>,
    /// What is wanted after the last of them.
    pub output: RowOutput,
}

/// The tokens of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowTokens<'a> {
    /// These, at least one.
    Known(&'a [u32]),
    /// The one that the model chose for this slot in the latest step that chose one, whether or not it was collected.
    Chosen,
}

/// What a row wants after its last token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowOutput {
    /// Nothing: the row only fills the KV store.
    None,
    /// The logits.
    Logits,
    /// A token that the model chooses, which needs [`StepModel::runs_ahead`]; and the logits too, if asked for.
    Token {
        /// How to choose it.
        draw: Draw,
        /// Whether the logits are wanted as well.
        logits: bool,
    },
}

/// What a step gave for one row.
#[derive(Debug)]
pub struct RowResult<'a> {
    /// Which row of the step, counted from 0.
    pub row: usize,
    /// The token that the model chose, if it was to choose one.
    pub token: Option<u32>,
    /// The logits, if they were wanted; [`StepModel::vocabulary_size`] entries, which may be changed freely.
    pub logits: Option<&'a mut [f32]>,
}

/// The size of a KV store that all sequences share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvBudget {
    /// Tokens that fit, a multiple of `page`.
    pub capacity: usize,
    /// Tokens of the unit in which a sequence takes room, at least 1.
    pub page: usize,
    /// Whether every sequence takes as much room as the longest.
    pub is_padded: bool,
}

impl KvBudget {
    /// Room for any number of sequences.
    pub const UNLIMITED: Self = Self { capacity: usize::MAX, page: 1, is_padded: false };
}

/// A loaded model, driven step by step by its engine thread. Not `Send`: it is built on the thread that runs it.
///
/// A step is submitted and collected. A model that [runs ahead](StepModel::runs_ahead) takes a second step before the
/// first is collected; steps are collected in the order in which they were submitted.
pub trait StepModel {
    /// How many entries a row of logits has.
    fn vocabulary_size(&self) -> usize;

    /// The most tokens one sequence can hold.
    fn context_length(&self) -> usize;

    /// The most prompt tokens that one step should take, for this backend to run well.
    fn prefill_chunk(&self) -> usize;

    /// Whether a prompt's last token is a step of its own, as mlx-lm does it.
    fn splits_last_token(&self) -> bool {
        false
    }

    /// Whether the model can choose tokens itself and begin a step before the one before was collected.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// What the KV store holds for all sequences together. The engine keeps within it: requests wait, or are set back
    /// and their tokens processed again later, rather than run into [`StepModelError::KvFull`].
    fn kv_budget(&self) -> KvBudget {
        KvBudget::UNLIMITED
    }

    /// How full the KV store is now.
    fn kv_status(&self) -> KvStatus {
        KvStatus::default()
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// When no memory is left for one.
    fn open(&mut self) -> Result<Slot, StepModelError>;

    /// Drops a sequence and frees what it held. Unknown slots are ignored. Steps that were submitted with it still give
    /// their results.
    fn close(&mut self, slot: Slot);

    /// Begins to process the rows. A model that does not run ahead may do all of the work here.
    ///
    /// # Errors
    /// On a failed computation or a full KV store. Nothing is to be collected then, and the slots of the rows are
    /// undefined and must be closed.
    fn submit(&mut self, rows: &[StepRow<'_>]) -> Result<(), StepModelError>;

    /// Waits for the oldest submitted step and calls `result` for each of its rows that wanted something, in order.
    ///
    /// # Errors
    /// On a failed computation. The slots of the rows are then undefined and must be closed.
    fn collect(&mut self, result: &mut dyn FnMut(RowResult<'_>)) -> Result<(), StepModelError>;
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
