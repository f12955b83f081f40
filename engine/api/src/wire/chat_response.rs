//! The answer to `POST /v1/chat/completions`, whole or in chunks.

use linnet_runtime::{FinishReason, TokenLogprob, Usage};
use serde_json::{Value, json};

use crate::answer::{AnswerHead, AnswerShape};
use crate::wire::logprobs::chat_logprobs;
use crate::wire::usage::{finish_reason, usage_json};

/// The shape of a chat's answer.
#[derive(Debug)]
pub(crate) struct ChatAnswer {
    /// What every chunk repeats.
    pub(crate) head: AnswerHead,
}

impl ChatAnswer {
    fn logprobs(&self, logprobs: &[TokenLogprob]) -> Value {
        if self.head.options.wants_logprobs { chat_logprobs(logprobs, &self.head.token_bytes()) } else { Value::Null }
    }

    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = self.head.json("chat.completion.chunk", choices);
        if self.head.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(delta: &Value, logprobs: &Value, reason: Option<FinishReason>) -> Value {
        json!([{
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason.map(finish_reason),
        }])
    }
}

impl AnswerShape for ChatAnswer {
    fn head(&self) -> &AnswerHead {
        &self.head
    }

    fn opening(&mut self) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        Some(self.chunk(&Self::choice(&delta, &Value::Null, None)))
    }

    fn piece(&mut self, text: &str, logprobs: &[TokenLogprob]) -> Value {
        let logprobs = self.logprobs(logprobs);
        self.chunk(&Self::choice(&json!({ "content": text }), &logprobs, None))
    }

    fn closing(&mut self, reason: FinishReason) -> Value {
        self.chunk(&Self::choice(&json!({}), &Value::Null, Some(reason)))
    }

    fn usage_chunk(&mut self, usage: &Usage) -> Value {
        let mut chunk = self.head.json("chat.completion.chunk", &json!([]));
        chunk["usage"] = usage_json(usage);
        chunk
    }

    fn whole(&mut self, text: &str, logprobs: &[TokenLogprob], reason: FinishReason, usage: &Usage) -> Value {
        let choice = json!([{
            "index": 0,
            "message": { "role": "assistant", "content": text, "refusal": null },
            "logprobs": self.logprobs(logprobs),
            "finish_reason": finish_reason(reason),
        }]);
        let mut answer = self.head.json("chat.completion", &choice);
        answer["usage"] = usage_json(usage);
        answer
    }
}
