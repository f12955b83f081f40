//! What the engine tells a caller.

use crate::StepModelError;

/// One message of a running generation. The last is always [`GenerationEvent::Finished`] or
/// [`GenerationEvent::Failed`].
#[derive(Debug, Clone)]
pub enum GenerationEvent {
    /// The request left the queue; its prompt is being processed.
    Prefill {
        /// Prompt tokens processed so far.
        done: usize,
        /// Prompt tokens in all.
        total: usize,
    },
    /// New text. It is complete UTF-8 and holds nothing that may still become a stop text.
    Text {
        /// The text since the last event; empty when a token produced none yet but its probability was asked for.
        text: String,
        /// The tokens generated since the last event. Tokens of half a character that the end cut off are in no event.
        tokens: Vec<u32>,
        /// Their probabilities, if asked for: one entry per token.
        logprobs: Vec<TokenLogprob>,
    },
    /// The generation ended well.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The generation ended with an error; the engine lives on.
    Failed(StepModelError),
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token or a stop text.
    Stop,
    /// The limit on tokens or the end of the context.
    Length,
}

/// What a generation took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose state was still in a cache.
    pub cached_tokens: usize,
    /// Tokens generated, a final end-of-sequence token included.
    pub completion_tokens: usize,
    /// Seconds from submission to the first prompt token processed.
    pub queue_seconds: f64,
    /// Seconds spent on the prompt, to the first generated token.
    pub prefill_seconds: f64,
    /// Seconds from the first generated token to the last.
    pub decode_seconds: f64,
}

/// The probability of one generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The chosen token.
    pub token: u32,
    /// Its natural-log probability, after bias and penalties, before temperature and filters.
    pub logprob: f32,
    /// The most probable tokens, most probable first.
    pub top: Vec<(u32, f32)>,
}
