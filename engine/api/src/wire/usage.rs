//! What an answer took, and why it ended, in OpenAI's words.

use linnet_runtime::{FinishReason, Usage};
use serde_json::{Value, json};

/// The `usage` object: OpenAI's fields, and the times as Groq's servers name them, in seconds.
pub(crate) fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "queue_time": usage.queue_seconds,
        "prompt_time": usage.prefill_seconds,
        "completion_time": usage.decode_seconds,
        "total_time": usage.queue_seconds + usage.prefill_seconds + usage.decode_seconds,
    })
}

/// The `finish_reason`.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}
