//! What the server counts and measures, for `GET /metrics` and `GET /stats`.
//!
//! Labels are names of routes, models on disk and error codes: nothing that a client can make up, so their number is
//! bounded and nothing of what users write can get in.

mod rate;
mod snapshot;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use linnet_runtime::FinishReason;
use linnet_speech::SpeechStatus;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use crate::provider::{LoadedCard, ResidencyStatus};
use rate::RateWindow;
use snapshot::{add_speech, snapshot};

/// The content type of [`Metrics::text`].
pub(crate) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// Every name begins so.
const PREFIX: &str = "linnet";

/// Limits of the buckets for waiting, in seconds: from a cached first token to a long prompt behind a full queue.
const WAIT_BUCKETS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0];

/// Limits of the buckets between two tokens, in seconds: from a small model on a GPU to a stalled stream.
const TOKEN_BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 2.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabels {
    model: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RouteLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabels {
    code: &'static str,
}

type Histograms = Family<ModelLabels, Histogram, fn() -> Histogram>;

/// How a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Well.
    Finished(FinishReason),
    /// With an error.
    Failed,
    /// The client left.
    Cancelled,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Finished(reason) => crate::wire::usage::finish_reason(reason),
            Self::Failed => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The tokens of a generation that ended, however it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    /// Prompt tokens taken in.
    pub(crate) prompt: u64,
    /// Those of them that came from a cache.
    pub(crate) cached: u64,
    /// Tokens generated.
    pub(crate) completion: u64,
}

/// Tokens per second of a model, over the last seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rates {
    /// Prompt tokens.
    pub(crate) prefill: f64,
    /// Generated tokens.
    pub(crate) decode: f64,
}

#[derive(Debug, Default)]
struct RateWindows {
    prefill: RateWindow,
    decode: RateWindow,
}

/// A server's counters.
pub(crate) struct Metrics {
    registry: Registry,
    started: Instant,
    http_requests: Family<RouteLabels, Counter>,
    errors: Family<CodeLabels, Counter>,
    requests: Family<OutcomeLabels, Counter>,
    prompt_tokens: Family<ModelLabels, Counter>,
    cached_tokens: Family<ModelLabels, Counter>,
    completion_tokens: Family<ModelLabels, Counter>,
    first_token: Histograms,
    queue: Histograms,
    between_tokens: Histograms,
    whole: Histograms,
    rates: Mutex<BTreeMap<String, RateWindows>>,
}

fn waits() -> Histogram {
    Histogram::new(WAIT_BUCKETS)
}

fn gaps() -> Histogram {
    Histogram::new(TOKEN_BUCKETS)
}

impl Metrics {
    /// Counters at zero.
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix(PREFIX),
            started: Instant::now(),
            http_requests: Family::default(),
            errors: Family::default(),
            requests: Family::default(),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            completion_tokens: Family::default(),
            first_token: Histograms::new_with_constructor(waits),
            queue: Histograms::new_with_constructor(waits),
            between_tokens: Histograms::new_with_constructor(gaps),
            whole: Histograms::new_with_constructor(waits),
            rates: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("http_requests", "HTTP requests by route and status", self.http_requests.clone());
        registry.register("http_errors", "Refused and failed HTTP requests by error code", self.errors.clone());
        registry.register("requests", "Generations by how they ended", self.requests.clone());
        registry.register("prompt_tokens", "Prompt tokens taken in", self.prompt_tokens.clone());
        registry.register("cached_prompt_tokens", "Prompt tokens found in a cache", self.cached_tokens.clone());
        registry.register("generation_tokens", "Tokens generated", self.completion_tokens.clone());
        let mut seconds = |name: &str, help: &str, histograms: &Histograms| {
            registry.register_with_unit(name, help, Unit::Seconds, histograms.clone());
        };
        seconds("time_to_first_token", "From the request's arrival to its first token", &self.first_token);
        seconds("request_queue_time", "From the hand-over to the engine to the first work on it", &self.queue);
        seconds("inter_token_latency", "Between two tokens of an answer", &self.between_tokens);
        seconds("request_duration", "From the request's arrival to the end of its answer", &self.whole);
    }

    /// How long the server has been there.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Counts an HTTP request. `route` is its pattern; `None` for a path that no route has.
    pub(crate) fn answered(&self, route: Option<&str>, status: StatusCode, code: Option<&'static str>) {
        let route = route.unwrap_or("unknown").to_owned();
        self.http_requests.get_or_create_owned(&RouteLabels { route, status: status.as_u16() }).inc();
        if let Some(code) = code {
            self.errors.get_or_create_owned(&CodeLabels { code }).inc();
        }
    }

    /// Notes that a generation left the queue.
    pub(crate) fn left_queue(&self, model: &str, waited: Duration) {
        self.queue.get_or_create_owned(&labels(model)).observe(waited.as_secs_f64());
    }

    /// Notes prompt tokens that were processed.
    pub(crate) fn prefilled(&self, model: &str, tokens: u64) {
        self.rate(model, |rates, now| rates.prefill.add(now, tokens));
    }

    /// Notes a generation's first token.
    pub(crate) fn first_token(&self, model: &str, after: Duration) {
        self.first_token.get_or_create_owned(&labels(model)).observe(after.as_secs_f64());
    }

    /// Notes tokens that came together, `gap` after those before; `None` for the first.
    pub(crate) fn generated(&self, model: &str, tokens: u64, gap: Option<Duration>) {
        self.rate(model, |rates, now| rates.decode.add(now, tokens));
        if let Some(gap) = gap {
            let histogram = self.between_tokens.get_or_create_owned(&labels(model));
            let each = gap.as_secs_f64() / tokens.max(1) as f64;
            (0..tokens).for_each(|_| histogram.observe(each));
        }
    }

    /// Counts a generation that ended.
    pub(crate) fn ended(&self, model: &str, outcome: Outcome, tokens: Tokens, after: Duration) {
        let of_model = labels(model);
        self.prompt_tokens.get_or_create_owned(&of_model).inc_by(tokens.prompt);
        self.cached_tokens.get_or_create_owned(&of_model).inc_by(tokens.cached);
        self.completion_tokens.get_or_create_owned(&of_model).inc_by(tokens.completion);
        self.whole.get_or_create_owned(&of_model).observe(after.as_secs_f64());
        let labels = OutcomeLabels { model: of_model.model, outcome: outcome.name() };
        self.requests.get_or_create_owned(&labels).inc();
    }

    /// What a model does per second now.
    pub(crate) fn rates(&self, model: &str) -> Rates {
        self.rate(model, |rates, now| Rates {
            prefill: rates.prefill.per_second(now),
            decode: rates.decode.per_second(now),
        })
    }

    fn rate<T>(&self, model: &str, look: impl FnOnce(&mut RateWindows, Duration) -> T) -> T {
        let now = self.started.elapsed();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        match rates.get_mut(model) {
            Some(rates) => look(rates, now),
            None => look(rates.entry(model.to_owned()).or_default(), now),
        }
    }

    /// Everything in Prometheus' text format: the counters, and what the models say of themselves now.
    ///
    /// # Errors
    /// When the encoder fails, which writing to memory does not.
    pub(crate) fn text(
        &self,
        models: &[LoadedCard],
        residency: &ResidencyStatus,
        speech: &[(String, SpeechStatus)],
        sessions: usize,
    ) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        let mut registry = snapshot(PREFIX, models, residency, self.uptime());
        add_speech(&mut registry, speech, sessions);
        prometheus_text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn labels(model: &str) -> ModelLabels {
    ModelLabels { model: model.to_owned() }
}
