//! The answer to `POST /v1/completions`, whole or in chunks.

use linnet_runtime::{FinishReason, TokenLogprob, Usage};
use serde_json::{Value, json};

use crate::answer::{AnswerHead, AnswerShape};
use crate::wire::logprobs::completion_logprobs;
use crate::wire::usage::{finish_reason, usage_json};

/// Chunks and whole answers share this name on OpenAI's wire.
const OBJECT: &str = "text_completion";

/// The shape of a text completion's answer.
#[derive(Debug)]
pub(crate) struct CompletionAnswer {
    /// What every chunk repeats.
    pub(crate) head: AnswerHead,
    /// Where the next token's text begins in the answer, in characters.
    pub(crate) text_offset: usize,
}

impl CompletionAnswer {
    fn choices(&mut self, text: &str, logprobs: &[TokenLogprob], reason: Option<FinishReason>) -> Value {
        let logprobs = if self.head.options.wants_logprobs && !logprobs.is_empty() {
            completion_logprobs(logprobs, &self.head.token_bytes(), &mut self.text_offset)
        } else {
            Value::Null
        };
        json!([{ "index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason.map(finish_reason) }])
    }

    fn chunk(&mut self, text: &str, logprobs: &[TokenLogprob], reason: Option<FinishReason>) -> Value {
        let choices = self.choices(text, logprobs, reason);
        let mut chunk = self.head.json(OBJECT, &choices);
        if self.head.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl AnswerShape for CompletionAnswer {
    fn head(&self) -> &AnswerHead {
        &self.head
    }

    fn opening(&mut self) -> Option<Value> {
        None
    }

    fn piece(&mut self, text: &str, logprobs: &[TokenLogprob]) -> Value {
        self.chunk(text, logprobs, None)
    }

    fn closing(&mut self, reason: FinishReason) -> Value {
        self.chunk("", &[], Some(reason))
    }

    fn usage_chunk(&mut self, usage: &Usage) -> Value {
        let mut chunk = self.head.json(OBJECT, &json!([]));
        chunk["usage"] = usage_json(usage);
        chunk
    }

    fn whole(&mut self, text: &str, logprobs: &[TokenLogprob], reason: FinishReason, usage: &Usage) -> Value {
        let choices = self.choices(text, logprobs, Some(reason));
        let mut answer = self.head.json(OBJECT, &choices);
        answer["usage"] = usage_json(usage);
        answer
    }
}
