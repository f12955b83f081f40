//! Why a request was not taken.

use std::time::Duration;

/// A request that the engine refused before doing any work for it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The prompt holds no token.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// Prompt and answer do not fit in the context together.
    #[error("{}", context_overflow(*.prompt, *.max_tokens, *.context))]
    ContextOverflow {
        /// Tokens of the prompt.
        prompt: usize,
        /// The answer's limit in tokens, if the request named one.
        max_tokens: Option<usize>,
        /// Tokens that one sequence can hold.
        context: usize,
    },
    /// Too many requests wait already.
    #[error(
        "the queue is full: {limit} requests are waiting; try again in about {} seconds",
        .retry_after.as_secs().max(1)
    )]
    QueueFull {
        /// How many requests may wait.
        limit: usize,
        /// When a place is likely to be free.
        retry_after: Duration,
    },
    /// A parameter outside its range.
    #[error("`{name}` is {value}, but must be {expected}")]
    InvalidParameter {
        /// The parameter, by its field's name.
        name: &'static str,
        /// What was sent.
        value: String,
        /// What may be sent.
        expected: String,
    },
    /// A token that the model does not know.
    #[error("`{name}` holds token {token}, but the model's tokens go from 0 to {}", .vocabulary.saturating_sub(1))]
    TokenOutOfRange {
        /// The field that holds it.
        name: &'static str,
        /// The token.
        token: u32,
        /// How many tokens the model knows.
        vocabulary: usize,
    },
    /// The engine thread ended; the model must be loaded again.
    #[error("the engine stopped: {0}; load the model again")]
    EngineGone(String),
}

fn context_overflow(prompt: usize, max_tokens: Option<usize>, context: usize) -> String {
    match max_tokens {
        Some(max_tokens) if prompt < context => format!(
            "the prompt's {prompt} tokens and the {max_tokens} tokens asked for make {}, but the context holds {context}; \
             shorten the prompt or ask for at most {} tokens",
            prompt.saturating_add(max_tokens),
            context.saturating_sub(prompt)
        ),
        _ => format!(
            "the prompt's {prompt} tokens leave no room for an answer in a context of {context} tokens; shorten the prompt"
        ),
    }
}
