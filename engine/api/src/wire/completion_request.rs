//! The body of `POST /v1/completions`.
//!
//! `prompt` is one prompt: a string, a list with one string, a list of token ids, or a list with one such list. OpenAI
//! answers a list of several with several choices; here one request gets one answer, so several prompts are refused.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Field, Fields};
use crate::wire::generation_fields::GenerationFields;

/// The most alternatives per token, as on OpenAI's wire.
const MOST_LOGPROBS: i64 = 5;

/// The token limit of a request that names none, as on OpenAI's wire: a base model seldom ends by itself.
const DEFAULT_MAX_TOKENS: usize = 16;

/// What is to be continued.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    /// A text, tokenized with the model's own special tokens.
    Text(String),
    /// Tokens, taken as they are.
    Tokens(Vec<u32>),
}

/// A text completion request, checked.
#[derive(Debug, Clone)]
pub(crate) struct CompletionRequest {
    /// What it shares with chats.
    pub(crate) generation: GenerationFields,
    /// What is to be continued.
    pub(crate) prompt: Prompt,
    /// How many alternatives to report per token, if probabilities are asked for at all.
    pub(crate) logprobs: Option<usize>,
}

impl CompletionRequest {
    /// Reads a request body.
    pub(crate) fn read(body: &Value) -> Result<Self, ApiError> {
        let fields = Fields::root(body)?;
        let mut generation = GenerationFields::read(&fields, &["max_tokens", "max_completion_tokens"])?;
        generation.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
        if let Some(echo) = fields.get("echo")
            && echo.flag()?
        {
            return Err(echo.unsupported("the prompt is not repeated in the answer; join the two yourself"));
        }
        if let Some(suffix) = fields.get("suffix")
            && !suffix.text()?.is_empty()
        {
            return Err(suffix.unsupported("filling in before a suffix is not supported; send the prompt alone"));
        }
        Ok(Self { generation, prompt: read_prompt(&fields)?, logprobs: read_logprobs(&fields)? })
    }
}

fn read_prompt(fields: &Fields<'_>) -> Result<Prompt, ApiError> {
    const EXPECTED: &str = "a string or a list of token ids";
    let prompt = fields.require("prompt", EXPECTED)?;
    if let Value::String(text) = prompt.value {
        return Ok(Prompt::Text(text.clone()));
    }
    let items = prompt.value.as_array().ok_or_else(|| prompt.expected(EXPECTED))?;
    match items.as_slice() {
        [] => Err(prompt.expected("at least one token")),
        [Value::String(text)] => Ok(Prompt::Text(text.clone())),
        [Value::Array(_)] => read_tokens(&prompt.item(0)?),
        [Value::String(_) | Value::Array(_), ..] => {
            Err(prompt.unsupported("one prompt per request; send several requests, they run side by side"))
        }
        _ => read_tokens(&prompt),
    }
}

fn read_tokens(prompt: &Field<'_>) -> Result<Prompt, ApiError> {
    let ids = prompt.integers("a list of token ids", &(0..=i64::from(u32::MAX)))?;
    // The range has seen to it that each fits.
    Ok(Prompt::Tokens(ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect()))
}

/// On this route `logprobs` is a number; `true` is taken as 0, as some clients send it.
fn read_logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let Some(field) = fields.get("logprobs") else { return Ok(None) };
    match field.value {
        Value::Bool(wanted) => Ok(wanted.then_some(0)),
        _ => Ok(usize::try_from(field.integer(0..=MOST_LOGPROBS)?).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[allow(clippy::needless_pass_by_value, reason = "json! reads best by value")]
    fn prompt(prompt: Value) -> Result<Prompt, ApiError> {
        CompletionRequest::read(&json!({ "prompt": prompt })).map(|request| request.prompt)
    }

    #[test]
    fn one_prompt_may_come_in_four_forms() {
        assert_eq!(prompt(json!("a")).unwrap(), Prompt::Text("a".into()));
        assert_eq!(prompt(json!(["a"])).unwrap(), Prompt::Text("a".into()));
        assert_eq!(prompt(json!([1, 2])).unwrap(), Prompt::Tokens(vec![1, 2]));
        assert_eq!(prompt(json!([[1, 2]])).unwrap(), Prompt::Tokens(vec![1, 2]));
    }

    #[test]
    fn several_prompts_and_odd_ones_are_refused() {
        assert_eq!(prompt(json!(["a", "b"])).unwrap_err().code(), "unsupported_value");
        assert_eq!(prompt(json!([[1], [2]])).unwrap_err().code(), "unsupported_value");
        for odd in [json!(null), json!(5), json!([]), json!([1, "a"]), json!([-1]), json!([1.5]), json!({})] {
            assert_eq!(prompt(odd.clone()).unwrap_err().code(), "invalid_value", "{odd}");
        }
    }

    #[test]
    fn a_request_without_a_limit_gets_sixteen_tokens() {
        let read = |body: Value| CompletionRequest::read(&body).unwrap().generation.max_tokens;
        assert_eq!(read(json!({"prompt": "a"})), Some(16));
        assert_eq!(read(json!({"prompt": "a", "max_tokens": 99})), Some(99));
    }

    #[test]
    fn echo_and_suffix_are_refused_only_when_they_ask_for_something() {
        let read = |body: Value| CompletionRequest::read(&body);
        assert!(read(json!({"prompt": "a", "echo": false, "suffix": ""})).is_ok());
        assert!(read(json!({"prompt": "a", "echo": true})).is_err());
        assert!(read(json!({"prompt": "a", "suffix": "b"})).is_err());
    }
}
