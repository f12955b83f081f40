//! Runs a generation and writes its answer, whole or as a stream, in the shape of the route that asked.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::response::{IntoResponse, Response};
use linnet_runtime::{FinishReason, Generation, GenerationEvent, GenerationRequest, SubmitError, TokenLogprob, Usage};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::metrics::{Outcome, Tokens};
use crate::provider::ModelLease;
use crate::sse;
use crate::state::ApiState;

/// What an answer and each of its chunks have in common.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    /// The answer's id.
    pub(crate) id: String,
    /// When it was begun, in seconds since 1970.
    pub(crate) created: u64,
    /// The model that gives it; held to the answer's end.
    pub(crate) model: ModelLease,
    /// What the request wants to see in it.
    pub(crate) options: AnswerOptions,
}

/// What a request wants to see in its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerOptions {
    /// Whether token probabilities were asked for.
    pub(crate) wants_logprobs: bool,
    /// Whether a stream ends with a usage chunk. As on OpenAI's wire the usage then stands in a chunk of its own, with
    /// no choices, and nowhere else: clients add up what they find.
    pub(crate) include_usage: bool,
    /// The tier to name, if the request named one.
    pub(crate) service_tier: Option<&'static str>,
    /// When the request's body had arrived.
    pub(crate) received: Instant,
}

impl AnswerHead {
    /// A head with a new id that begins with `prefix`.
    pub(crate) fn new(prefix: &str, model: ModelLease, options: AnswerOptions) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        Self { id, created, model, options }
    }

    /// The object around `choices`.
    pub(crate) fn json(&self, object: &str, choices: &Value) -> Value {
        let mut answer = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model.id,
            "system_fingerprint": null,
            "choices": choices,
        });
        if let Some(tier) = self.options.service_tier {
            answer["service_tier"] = tier.into();
        }
        answer
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
    state: &Arc<ApiState>,
    request: GenerationRequest,
    mut shape: impl AnswerShape,
    stream: bool,
    prompt_field: &'static str,
) -> Result<Response, ApiError> {
    let head = shape.head();
    let prompt_tokens = request.prompt.len();
    let generation = head.model.engine.submit(request).map_err(|error| refusal(error, prompt_field))?;
    let mut running = Running::new(Arc::clone(state), generation, head, prompt_tokens, stream);
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

/// A generation in work: counted, and with a line in the log when it ends, whether finished, failed or dropped.
pub(crate) struct Running {
    state: Arc<ApiState>,
    generation: Generation,
    cut_off: watch::Receiver<bool>,
    span: tracing::Span,
    model: String,
    received: Instant,
    submitted: Instant,
    /// When the latest tokens came.
    latest: Option<Instant>,
    /// Prompt tokens processed so far; `None` while it waits.
    prefilled: Option<usize>,
    tokens: u64,
    ended: bool,
}

impl Running {
    fn new(
        state: Arc<ApiState>,
        generation: Generation,
        head: &AnswerHead,
        prompt_tokens: usize,
        stream: bool,
    ) -> Self {
        let model = head.model.id.clone();
        // What is known at the end is added then.
        let span = tracing::info_span!(
            "generation",
            model,
            stream,
            prompt_tokens,
            cached_tokens = tracing::field::Empty,
            completion_tokens = tracing::field::Empty,
            queue_seconds = tracing::field::Empty,
            prefill_seconds = tracing::field::Empty,
            decode_seconds = tracing::field::Empty,
            seconds = tracing::field::Empty,
        );
        Self {
            cut_off: state.cut_off(),
            state,
            generation,
            span,
            model,
            received: head.options.received,
            submitted: Instant::now(),
            latest: None,
            prefilled: None,
            tokens: 0,
            ended: false,
        }
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
                Some(GenerationEvent::Prefill { done, .. }) => self.note_prefill(done),
                Some(GenerationEvent::Text { text, tokens, logprobs }) => {
                    self.note_tokens(tokens.len() as u64);
                    if !text.is_empty() || !logprobs.is_empty() {
                        return Progress::Text { text, logprobs };
                    }
                }
                Some(GenerationEvent::Finished { reason, usage }) => {
                    self.finish(reason, &usage);
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

    fn note_prefill(&mut self, done: usize) {
        let metrics = &self.state.metrics;
        match self.prefilled {
            None => metrics.left_queue(&self.model, self.submitted.elapsed()),
            Some(before) => metrics.prefilled(&self.model, done.saturating_sub(before) as u64),
        }
        self.prefilled = Some(done);
    }

    fn note_tokens(&mut self, tokens: u64) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        let metrics = &self.state.metrics;
        if self.latest.is_none() {
            metrics.first_token(&self.model, now.duration_since(self.received));
        }
        metrics.generated(&self.model, tokens, self.latest.map(|latest| now.duration_since(latest)));
        self.latest = Some(now);
        self.tokens += tokens;
    }

    fn finish(&mut self, reason: FinishReason, usage: &Usage) {
        let tokens = Tokens {
            prompt: usage.prompt_tokens as u64,
            cached: usage.cached_tokens as u64,
            completion: usage.completion_tokens as u64,
        };
        self.span.record("queue_seconds", usage.queue_seconds);
        self.span.record("prefill_seconds", usage.prefill_seconds);
        self.span.record("decode_seconds", usage.decode_seconds);
        self.end(Outcome::Finished(reason), tokens);
        tracing::info!(parent: &self.span, reason = crate::wire::usage::finish_reason(reason), "answer finished");
    }

    fn fail(&mut self, error: ApiError) -> Progress {
        self.end(Outcome::Failed, self.tokens_so_far());
        // The text of an error of the engine holds figures; nothing that the user wrote gets into one.
        tracing::warn!(parent: &self.span, code = error.code(), "answer failed: {error}");
        Progress::Failed(error)
    }

    fn tokens_so_far(&self) -> Tokens {
        Tokens { prompt: self.prefilled.unwrap_or(0) as u64, cached: 0, completion: self.tokens }
    }

    fn end(&mut self, outcome: Outcome, tokens: Tokens) {
        self.ended = true;
        let after = self.received.elapsed();
        self.span.record("cached_tokens", tokens.cached);
        self.span.record("completion_tokens", tokens.completion);
        self.span.record("seconds", rounded(after));
        self.state.metrics.ended(&self.model, outcome, tokens, after);
    }
}

/// Seconds as far as a log needs them.
fn rounded(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Outcome::Cancelled, self.tokens_so_far());
            tracing::info!(parent: &self.span, "answer cancelled: the client left");
        }
    }
}
