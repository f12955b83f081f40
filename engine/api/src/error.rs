//! Every way a request can fail, and the one table that turns it into a status, a type, a code and a text.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use linnet_runtime::StepModelError;
use linnet_speech::{AudioError, SpeechError, VadError};
use serde_json::{Value, json};

use crate::quote::{cut, shortened};
use crate::residency::{Shortage, Use};

/// A refused or failed request. Its `Display` is the text the client reads: what is wrong, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {detail} (line {line}, column {column})")]
    InvalidJson {
        /// What the parser met.
        detail: String,
        /// Where, counted from one.
        line: usize,
        /// Where, counted from one.
        column: usize,
    },
    /// The body is larger than the server takes.
    #[error("the request body is larger than {limit} bytes, which is this server's limit; send less text at once")]
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The connection broke while the body was read.
    #[error("the request body ended early: {0}; send the request again")]
    BodyBroken(String),
    /// The body did not arrive.
    #[error("no more of the request body arrived for {seconds} seconds; send the request again")]
    BodyStalled {
        /// The silence waited for.
        seconds: u64,
    },
    /// A field is missing, has the wrong type or is out of range.
    #[error("`{field}`: {problem}")]
    InvalidField {
        /// The path of the field, such as `messages[1].content`.
        field: String,
        /// What was expected and what was found.
        problem: String,
    },
    /// A field asks for something this server cannot do.
    #[error("`{field}`: {problem}")]
    Unsupported {
        /// The path of the field.
        field: String,
        /// What is not supported and what to do instead.
        problem: String,
    },
    /// The prompt, or the prompt with the asked-for answer, is longer than the model's context.
    #[error("{text}")]
    ContextOverflow {
        /// The field that holds the prompt.
        field: &'static str,
        /// The figures, and what to do.
        text: String,
    },
    /// The model's chat template refused the messages.
    #[error("`{model}`: {reason}")]
    TemplateRefused {
        /// The model.
        model: String,
        /// The template's own words.
        reason: String,
    },
    /// The model's tokenizer failed on a text.
    #[error("the tokenizer of `{model}` failed: {reason}")]
    TokenizerFailed {
        /// The model.
        model: String,
        /// What it said.
        reason: String,
    },
    /// The model's chat template is broken; no request would do.
    #[error("`{model}`: {reason}")]
    TemplateBroken {
        /// The model.
        model: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The model has no chat template.
    #[error("`{model}` has no chat template; use /v1/completions with a plain prompt, or an instruction-tuned model")]
    NoTemplate {
        /// The model.
        model: String,
    },
    /// No model of that name.
    #[error("there is no model `{model}` here; {}", available_text(.available))]
    ModelNotFound {
        /// The name asked for.
        model: String,
        /// The names that would have worked.
        available: Vec<String>,
    },
    /// The request named no model and there is none to take.
    #[error("no model is installed; fetch one with `linnet pull starter`")]
    NoModel,
    /// The model is known but cannot be loaded.
    #[error("`{model}` cannot be loaded: {reason}")]
    ModelLoadFailed {
        /// The model.
        model: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The model does not fit in memory beside what has to stay there.
    #[error("`{model}` cannot be loaded: {shortage}; {}", memory_remedy(.shortage))]
    MemoryShort {
        /// The model.
        model: String,
        /// The figures.
        shortage: Box<Shortage>,
    },
    /// The model would fit, but requests of other models hold its room for too long.
    #[error(
        "`{model}` cannot be loaded yet: {shortage}; requests held that memory for {waited_seconds} seconds: come back \
         later, or start the server with a larger --memory"
    )]
    MemoryBusy {
        /// The model.
        model: String,
        /// The figures.
        shortage: Box<Shortage>,
        /// How long was waited, in seconds.
        waited_seconds: u64,
    },
    /// A model that requests use cannot be unloaded.
    #[error("`{model}` is in use by {requests} requests; unload it when they have ended")]
    ModelInUse {
        /// The model.
        model: String,
        /// How many requests run or wait.
        requests: usize,
    },
    /// No speech model is installed.
    #[error(
        "no speech model is installed; fetch one with `linnet pull whisper-tiny.en`, or `whisper-base` for more languages"
    )]
    NoSpeechModel,
    /// The model does something else than this route asks for.
    #[error("`{model}` is a {kind} model; {remedy}")]
    WrongModelKind {
        /// The model.
        model: String,
        /// What it is.
        kind: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The body is of a kind that this route does not read.
    #[error("the content type `{found}` is not read here; send {expected}")]
    UnsupportedMedia {
        /// What was sent.
        found: String,
        /// What is read.
        expected: &'static str,
    },
    /// The form is not one.
    #[error("the form cannot be read: {0}; send it as multipart/form-data with a boundary")]
    BrokenForm(String),
    /// The audio cannot be read.
    #[error("{0}")]
    BadAudio(String),
    /// The request does not suit the speech model.
    #[error("{0}")]
    SpeechRequest(String),
    /// The speech model failed.
    #[error("`{model}`: {reason}")]
    SpeechFailed {
        /// The model.
        model: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// No open session has that id.
    #[error(
        "there is no session `{id}`; it was closed or nobody used it for too long: open one with POST /v1/audio/sessions"
    )]
    SessionNotFound {
        /// The id.
        id: String,
    },
    /// The session takes no more audio.
    #[error("session `{id}` was finished and takes no more audio; open another with POST /v1/audio/sessions")]
    SessionFinished {
        /// The id.
        id: String,
    },
    /// No more sessions.
    #[error("{limit} sessions are open, which is the most; finish or delete one")]
    TooManySessions {
        /// How many may be open.
        limit: usize,
    },
    /// Too many requests wait already.
    #[error("{text}")]
    Overloaded {
        /// How many wait, and when to come back.
        text: String,
        /// When a place is likely to be free, in seconds.
        retry_seconds: u64,
    },
    /// The engine failed while it worked on this request.
    #[error("the answer could not be finished: {0}")]
    Engine(StepModelError),
    /// The server is going down.
    #[error("the server is shutting down; try again when it is back")]
    ShuttingDown,
    /// The `Host` header names something else than this server.
    #[error(
        "the Host `{host}` is not this server's: a web page could have sent the request here by a changed DNS name; use \
         localhost or 127.0.0.1, or start the server with --allow-host {host}"
    )]
    ForbiddenHost {
        /// The name in the header, without its port.
        host: String,
    },
    /// The request names no host at all.
    #[error("the request has no usable `Host` header; send one, such as `Host: localhost`")]
    MissingHost,
    /// The `Origin` header names a page this server does not serve.
    #[error(
        "the Origin `{origin}` is not allowed here; start the server with --allow-origin {origin} to allow its pages"
    )]
    ForbiddenOrigin {
        /// The header's value.
        origin: String,
    },
    /// The API key is missing or wrong.
    #[error("{0}; send it as `Authorization: Bearer KEY`")]
    Unauthorized(&'static str),
    /// No such route.
    #[error("there is no `{method} {path}` here; this server answers {routes}")]
    UnknownRoute {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
        /// The routes there are.
        routes: String,
    },
    /// The route exists for other methods.
    #[error("`{path}` does not take {method}; see the Allow header")]
    MethodNotAllowed {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// The metrics could not be written.
    #[error("the metrics could not be written; please report this")]
    Metrics,
    /// A fault of our own.
    #[error("an internal fault stopped this request (request id {request_id}); the server goes on, please report it")]
    Internal {
        /// The id under which the fault stands in the log.
        request_id: String,
    },
}

fn memory_remedy(shortage: &Shortage) -> String {
    let has = |usage: Use| shortage.residents.iter().any(|resident| resident.usage == usage);
    let mut ways = Vec::new();
    if has(Use::Pinned) {
        ways.push("unpin a model (POST /admin/models/pin)");
    }
    if shortage.needed > shortage.budget {
        ways.push("start the server with a larger --memory");
    } else if shortage.free < shortage.budget && !has(Use::Pinned) {
        ways.push("close other programs");
    }
    ways.push("choose a smaller model or fewer --kv-tokens");
    ways.join(", or ")
}

fn available_text(available: &[String]) -> String {
    match available {
        [] => "none is installed, fetch one with `linnet pull starter`".to_owned(),
        names => format!("installed: {}", names.join(", ")),
    }
}

/// One row of the table.
struct Row {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
}

/// The longest text of an error, in characters.
const LONGEST_MESSAGE: usize = 1000;

const INVALID: &str = "invalid_request_error";

impl ApiError {
    /// No model goes by `name`, which a client wrote; `available` would have worked.
    #[must_use]
    pub fn model_not_found(name: &str, available: Vec<String>) -> Self {
        Self::ModelNotFound { model: shortened(name), available }
    }

    /// What a speech engine says of `model`.
    pub(crate) fn speech(model: &str, error: SpeechError) -> Self {
        let model = model.to_owned();
        match error {
            SpeechError::Load(reason) => Self::ModelLoadFailed { model, reason },
            SpeechError::Request(text) => Self::SpeechRequest(text),
            SpeechError::QueueFull { .. } => Self::Overloaded { text: error.to_string(), retry_seconds: 5 },
            SpeechError::Cancelled => Self::ShuttingDown,
            other => Self::SpeechFailed { model, reason: other.to_string() },
        }
    }

    /// What is wrong with an upload.
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn audio(error: AudioError) -> Self {
        Self::BadAudio(error.to_string())
    }

    /// The detector of speech failed.
    pub(crate) fn vad(error: &VadError) -> Self {
        Self::SpeechFailed { model: "silero-vad".to_owned(), reason: error.to_string() }
    }

    /// No session has the id that a client wrote.
    pub(crate) fn session_not_found(id: &str) -> Self {
        Self::SessionNotFound { id: shortened(id) }
    }

    /// The table: each kind of error with its status, OpenAI type and code.
    fn row(&self) -> Row {
        let (status, kind, code) = match self {
            Self::InvalidJson { .. } => (StatusCode::BAD_REQUEST, INVALID, "invalid_json"),
            Self::BodyTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, "body_too_large"),
            Self::BodyBroken(_) => (StatusCode::BAD_REQUEST, INVALID, "body_incomplete"),
            Self::BodyStalled { .. } => (StatusCode::REQUEST_TIMEOUT, INVALID, "body_timeout"),
            Self::InvalidField { .. } => (StatusCode::BAD_REQUEST, INVALID, "invalid_value"),
            Self::Unsupported { .. } => (StatusCode::BAD_REQUEST, INVALID, "unsupported_value"),
            Self::ContextOverflow { .. } => (StatusCode::BAD_REQUEST, INVALID, "context_length_exceeded"),
            Self::TemplateRefused { .. } => (StatusCode::BAD_REQUEST, INVALID, "template_refused"),
            Self::TokenizerFailed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "tokenizer_failed"),
            Self::TemplateBroken { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "template_broken"),
            Self::NoTemplate { .. } => (StatusCode::BAD_REQUEST, INVALID, "no_chat_template"),
            Self::ModelNotFound { .. } => (StatusCode::NOT_FOUND, INVALID, "model_not_found"),
            Self::NoModel => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "no_model"),
            Self::ModelLoadFailed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "model_load_failed"),
            Self::MemoryShort { .. } => (StatusCode::BAD_REQUEST, INVALID, "insufficient_memory"),
            Self::MemoryBusy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "memory_in_use"),
            Self::ModelInUse { .. } => (StatusCode::CONFLICT, INVALID, "model_in_use"),
            Self::NoSpeechModel => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "no_speech_model"),
            Self::WrongModelKind { .. } => (StatusCode::BAD_REQUEST, INVALID, "wrong_model_kind"),
            Self::UnsupportedMedia { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type"),
            Self::BrokenForm(_) => (StatusCode::BAD_REQUEST, INVALID, "invalid_form"),
            Self::BadAudio(_) => (StatusCode::BAD_REQUEST, INVALID, "invalid_audio"),
            Self::SpeechRequest(_) => (StatusCode::BAD_REQUEST, INVALID, "invalid_value"),
            Self::SpeechFailed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "transcription_failed"),
            Self::SessionNotFound { .. } => (StatusCode::NOT_FOUND, INVALID, "session_not_found"),
            Self::SessionFinished { .. } => (StatusCode::CONFLICT, INVALID, "session_finished"),
            Self::TooManySessions { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "too_many_sessions"),
            Self::Overloaded { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "overloaded"),
            Self::Engine(StepModelError::KvFull { .. }) => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", "kv_cache_full")
            }
            Self::Engine(StepModelError::EngineGone(_)) => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", "engine_stopped")
            }
            Self::Engine(_) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "generation_failed"),
            Self::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "shutting_down"),
            Self::ForbiddenHost { .. } => (StatusCode::FORBIDDEN, "forbidden", "host_not_allowed"),
            Self::MissingHost => (StatusCode::FORBIDDEN, "forbidden", "host_missing"),
            Self::ForbiddenOrigin { .. } => (StatusCode::FORBIDDEN, "forbidden", "origin_not_allowed"),
            Self::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key"),
            Self::UnknownRoute { .. } => (StatusCode::NOT_FOUND, INVALID, "unknown_url"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed"),
            Self::Metrics | Self::Internal { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal_error")
            }
        };
        Row { status, kind, code }
    }

    /// The HTTP status of this error.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.row().status
    }

    /// The machine-readable code of this error.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.row().code
    }

    /// The field at fault, if one is.
    fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidField { field, .. } | Self::Unsupported { field, .. } => Some(field),
            Self::ModelNotFound { .. } | Self::MemoryShort { .. } | Self::ModelInUse { .. } => Some("model"),
            Self::WrongModelKind { .. } => Some("model"),
            Self::BadAudio(_) => Some("file"),
            Self::ContextOverflow { field, .. } => Some(field),
            Self::TemplateRefused { .. } => Some("messages"),
            _ => None,
        }
    }

    /// OpenAI's error body.
    #[must_use]
    pub fn body(&self) -> Value {
        let Row { kind, code, .. } = self.row();
        // The net under all texts that quote a client, a template or a model.
        let message = cut(&self.to_string(), LONGEST_MESSAGE);
        json!({ "error": { "message": message, "type": kind, "param": self.param(), "code": code } })
    }

    /// What a client should know in a header: how to authenticate, when to come back.
    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Self::Overloaded { retry_seconds, .. } => {
                return Some((header::RETRY_AFTER, HeaderValue::from(*retry_seconds)));
            }
            // Whoever waited that long need not be back within a second.
            Self::MemoryBusy { .. } => return Some((header::RETRY_AFTER, HeaderValue::from_static("10"))),
            _ => {}
        }
        match self.row().status {
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            StatusCode::SERVICE_UNAVAILABLE => Some((header::RETRY_AFTER, HeaderValue::from_static("1"))),
            _ => None,
        }
    }
}

/// The code of the error that a response tells, for whoever counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorCode(pub(crate) &'static str);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // Only the code: the text may quote what the user wrote.
        tracing::debug!(code = self.code(), "request refused");
        let mut response = (self.status(), axum::Json(self.body())).into_response();
        response.extensions_mut().insert(ErrorCode(self.code()));
        if let Some((name, value)) = self.header() {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_error_names_the_field_in_the_text_and_as_param() {
        let error = ApiError::InvalidField { field: "messages[1].role".into(), problem: "expected a string".into() };
        assert_eq!(
            error.body(),
            json!({"error": {
                "message": "`messages[1].role`: expected a string",
                "type": "invalid_request_error",
                "param": "messages[1].role",
                "code": "invalid_value",
            }})
        );
    }

    #[test]
    fn a_full_queue_says_once_when_to_come_back_and_says_it_in_the_header_too() {
        let text = "the queue is full: 64 requests are waiting; try again in about 7 seconds".to_owned();
        let response = ApiError::Overloaded { text: text.clone(), retry_seconds: 7 }.into_response();
        assert_eq!(response.headers()[header::RETRY_AFTER], "7");
        assert_eq!(ApiError::Overloaded { text: text.clone(), retry_seconds: 7 }.to_string(), text);
    }

    #[test]
    fn no_error_is_longer_than_a_person_reads() {
        let error = ApiError::TemplateRefused { model: "m".into(), reason: "é".repeat(100_000) };
        let message = error.body()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.ends_with("...") && message.chars().count() <= LONGEST_MESSAGE + 3);
    }

    #[test]
    fn an_unknown_model_lists_the_known_ones() {
        let error = ApiError::ModelNotFound { model: "x".into(), available: vec!["a".into(), "b".into()] };
        assert_eq!(error.status(), StatusCode::NOT_FOUND);
        assert_eq!(error.to_string(), "there is no model `x` here; installed: a, b");
    }
}
