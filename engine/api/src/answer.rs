//! Runs a generation and writes its answer, whole or as a stream, in the shape of the route that asked.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::response::{IntoResponse, Response};
use linnet_runtime::{FinishReason, Generation, GenerationEvent, GenerationRequest, SubmitError, TokenLogprob, Usage};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::provider::ServedModel;
use crate::sse;
use crate::state::ApiState;

/// What an answer and each of its chunks have in common.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    /// The answer's id.
    pub(crate) id: String,
    /// When it was begun, in seconds since 1970.
    pub(crate) created: u64,
    /// The model that gives it.
    pub(crate) model: Arc<ServedModel>,
    /// Whether token probabilities were asked for.
    pub(crate) wants_logprobs: bool,
    /// Whether a stream ends with a usage chunk. As on OpenAI's wire the usage then stands in a chunk of its own, with
    /// no choices, and nowhere else: clients add up what they find.
    pub(crate) include_usage: bool,
}

impl AnswerHead {
    /// A head with a new id that begins with `prefix`.
    pub(crate) fn new(prefix: &str, model: Arc<ServedModel>, wants_logprobs: bool, include_usage: bool) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        Self { id, created, model, wants_logprobs, include_usage }
    }

    /// The object around `choices`.
    pub(crate) fn json(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model.id,
            "system_fingerprint": null,
            "choices": choices,
        })
    }

    /// How a token is spelled.
    pub(crate) fn token_bytes(&self) -> impl Fn(u32) -> Vec<u8> + Send + Sync + '_ {
        |token| self.model.tokenizer.token_bytes(token).unwrap_or_default()
    }
}

/// How a route writes an answer.
pub(crate) trait AnswerShape: Send + 'static {
    /// What all chunks share.
    fn head(&self) -> &AnswerHead;
    /// The chunk before any text, if the route has one.
    fn opening(&mut self) -> Option<Value>;
    /// A chunk of text.
    fn piece(&mut self, text: &str, logprobs: &[TokenLogprob]) -> Value;
    /// The chunk with the reason for the end.
    fn closing(&mut self, reason: FinishReason) -> Value;
    /// The chunk with the usage.
    fn usage_chunk(&mut self, usage: &Usage) -> Value;
    /// The whole answer at once.
    fn whole(&mut self, text: &str, logprobs: &[TokenLogprob], reason: FinishReason, usage: &Usage) -> Value;
}

/// Submits the request and answers it. When the client goes away, the response (or this future) is dropped, and with
/// it the generation, which cancels it.
///
/// # Errors
/// What the engine refuses beforehand; without `stream`, also what fails later.
pub(crate) async fn answer(
    state: &ApiState,
    request: GenerationRequest,
    mut shape: impl AnswerShape,
    stream: bool,
    prompt_field: &'static str,
) -> Result<Response, ApiError> {
    let model = Arc::clone(&shape.head().model);
    let generation = model.engine.submit(request).map_err(|error| refusal(error, prompt_field))?;
    let mut running = Running::new(generation, state.cut_off());
    if stream {
        return Ok(sse::respond(running, shape, state.options.keep_alive));
    }
    let mut text = String::new();
    let mut logprobs = Vec::new();
    loop {
        match running.next().await {
            Progress::Text { text: more, logprobs: entries } => {
                text.push_str(&more);
                logprobs.extend(entries);
            }
            Progress::Finished { reason, usage } => {
                return Ok(axum::Json(shape.whole(&text, &logprobs, reason, &usage)).into_response());
            }
            Progress::Failed(error) => return Err(error),
        }
    }
}

fn refusal(error: SubmitError, prompt_field: &'static str) -> ApiError {
    let text = error.to_string();
    match error {
        SubmitError::ContextOverflow { .. } => ApiError::ContextOverflow { field: prompt_field, text },
        SubmitError::EmptyPrompt => ApiError::InvalidField { field: prompt_field.to_owned(), problem: text },
        SubmitError::QueueFull { retry_after, .. } => {
            ApiError::Overloaded { text, retry_seconds: retry_after.as_secs().max(1) }
        }
        SubmitError::InvalidParameter { name, value, expected } => {
            ApiError::InvalidField { field: name.to_owned(), problem: format!("is {value}, but must be {expected}") }
        }
        SubmitError::TokenOutOfRange { name, .. } => {
            // The field stands before the text already.
            let problem = text.strip_prefix(&format!("`{name}` ")).unwrap_or(&text).to_owned();
            ApiError::InvalidField { field: name.to_owned(), problem }
        }
        SubmitError::EngineGone(reason) => ApiError::Engine(linnet_runtime::StepModelError::EngineGone(reason)),
        other => ApiError::InvalidField { field: prompt_field.to_owned(), problem: other.to_string() },
    }
}

/// What a running generation has to say to a client.
pub(crate) enum Progress {
    /// More text.
    Text {
        /// The text.
        text: String,
        /// Its tokens' probabilities, if asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// The good end.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The bad end.
    Failed(ApiError),
}

/// A generation in work, with its line in the log: one when it ends, whether finished, failed or dropped.
pub(crate) struct Running {
    generation: Generation,
    cut_off: watch::Receiver<bool>,
    span: tracing::Span,
    started: Instant,
    tokens: usize,
    ended: bool,
}

impl Running {
    fn new(generation: Generation, cut_off: watch::Receiver<bool>) -> Self {
        Self { generation, cut_off, span: tracing::Span::current(), started: Instant::now(), tokens: 0, ended: false }
    }

    /// The next thing to tell. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Progress {
        loop {
            let is_cut = async { drop(self.cut_off.wait_for(|is_cut| *is_cut).await) };
            let event = tokio::select! {
                event = self.generation.next() => Some(event),
                () = is_cut => None,
            };
            let Some(event) = event else { return self.fail(ApiError::ShuttingDown) };
            match event {
                Some(GenerationEvent::Prefill { .. }) => {}
                Some(GenerationEvent::Text { text, tokens, logprobs }) => {
                    self.tokens += tokens.len();
                    if !text.is_empty() || !logprobs.is_empty() {
                        return Progress::Text { text, logprobs };
                    }
                }
                Some(GenerationEvent::Finished { reason, usage }) => {
                    self.log_finished(reason, &usage);
                    return Progress::Finished { reason, usage };
                }
                Some(GenerationEvent::Failed(error)) => return self.fail(ApiError::Engine(error)),
                None => {
                    let gone = linnet_runtime::StepModelError::EngineGone("its answer broke off".to_owned());
                    return self.fail(ApiError::Engine(gone));
                }
            }
        }
    }

    fn log_finished(&mut self, reason: FinishReason, usage: &Usage) {
        self.ended = true;
        tracing::info!(
            parent: &self.span,
            reason = crate::wire::usage::finish_reason(reason),
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            queue_seconds = usage.queue_seconds,
            prefill_seconds = usage.prefill_seconds,
            decode_seconds = usage.decode_seconds,
            "answer finished"
        );
    }

    fn fail(&mut self, error: ApiError) -> Progress {
        self.ended = true;
        tracing::warn!(parent: &self.span, code = error.code(), tokens = self.tokens, "answer failed: {error}");
        Progress::Failed(error)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let seconds = self.started.elapsed().as_secs_f64();
            tracing::info!(parent: &self.span, tokens = self.tokens, seconds, "answer cancelled: the client left");
        }
    }
}
