//! What the engine thread needs of a model.

/// How the model chooses a token itself, and a sequence's place in its KV store.
pub use linnet_compute::{Draw, KeptBlock, KvBlock, Slot};

use crate::{KvStatus, Namespace};
use std::ops::Range;

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

    /// Tokens of the blocks in which computed state is kept and shared; 0 for a model that keeps none.
    fn block_tokens(&self) -> usize {
        0
    }

    /// Where computed state is valid.
    fn namespace(&self) -> Namespace {
        Namespace::default()
    }

    /// Keeps `tokens` tokens of a sequence, from `start`, the beginning of a block, on: of a step that was collected.
    ///
    /// # Errors
    /// When the sequence does not hold them, or the model keeps nothing.
    fn keep(&mut self, _slot: Slot, _start: usize, _tokens: usize) -> Result<KeptBlock, StepModelError> {
        Err(keeps_nothing())
    }

    /// Gives a kept block back.
    fn release(&mut self, _kept: KeptBlock) {}

    /// How many of the first `tokens` tokens of these blocks a sequence can take over.
    fn adoptable(&self, _blocks: &[KeptBlock], _tokens: usize) -> usize {
        0
    }

    /// Makes the first `tokens` tokens of these blocks the beginning of an empty sequence. All but the last are whole.
    ///
    /// # Errors
    /// When they are not [adoptable](StepModel::adoptable) or there is no room. The sequence must be closed then.
    fn adopt(&mut self, _slot: Slot, _blocks: &[KeptBlock], _tokens: usize) -> Result<(), StepModelError> {
        Err(keeps_nothing())
    }

    /// How many kept blocks that no sequence shares must be released so that sequences can take in as many tokens each.
    fn lacking(&self, _rows: &[(Slot, usize)]) -> usize {
        0
    }

    /// Bytes of a kept block of so many tokens.
    fn kept_bytes(&self, _tokens: usize) -> usize {
        0
    }

    /// Tokens `range` of a sequence, which a kept block holds, on the host.
    ///
    /// # Errors
    /// When the block is unknown, cannot be read, or the model keeps nothing.
    fn read_kept(&mut self, _kept: KeptBlock, _range: Range<usize>) -> Result<KvBlock, StepModelError> {
        Err(keeps_nothing())
    }

    /// Makes a kept block of what [`StepModel::read_kept`] gave.
    ///
    /// # Errors
    /// When it does not fit the model or there is no room.
    fn write_kept(&mut self, _block: &KvBlock) -> Result<KeptBlock, StepModelError> {
        Err(keeps_nothing())
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

fn keeps_nothing() -> StepModelError {
    StepModelError::Compute("the model keeps no blocks".into())
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
