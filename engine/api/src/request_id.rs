//! Every request's id, its line in the log, and the net under a handler that panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tracing::Instrument;

use crate::error::{ApiError, ErrorCode};
use crate::state::ApiState;

/// The header that carries the id, both ways.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id taken from a client.
const LONGEST_ID: usize = 128;

/// Gives the request an id (the client's own, if it sent a sound one), logs its outcome without any of its content, and
/// turns a panic into an error response.
pub(crate) async fn observe(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let id = sound_id(request.headers().get(REQUEST_ID)).unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    // The route's pattern and not the path, which a client may write anything into.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    // Whoever watches a server asks for these every few seconds.
    let is_routine = matches!(route, Some("/health" | "/stats" | "/metrics"));
    let span = tracing::info_span!("request", id, route = route.unwrap_or("unknown"));
    let started = Instant::now();
    let mut response = async {
        let outcome = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        let response = outcome.unwrap_or_else(|_| {
            tracing::error!("the handler panicked");
            ApiError::Internal { request_id: id.clone() }.into_response()
        });
        let milliseconds = started.elapsed().as_secs_f64() * 1000.0;
        let code = response.extensions().get::<ErrorCode>().map(|code| code.0);
        state.metrics.answered(route, response.status(), code);
        let status = response.status().as_u16();
        if is_routine {
            tracing::debug!(status, milliseconds, "answered");
        } else {
            tracing::info!(status, milliseconds, "answered");
        }
        response
    }
    .instrument(span)
    .await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn sound_id(value: Option<&HeaderValue>) -> Option<String> {
    let id = value?.to_str().ok()?;
    let is_sound = !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_sound.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_visible_ids_are_taken_over() {
        let id = |text: &str| sound_id(HeaderValue::from_bytes(text.as_bytes()).ok().as_ref());
        assert_eq!(id("abc-1"), Some("abc-1".to_owned()));
        assert_eq!(id(""), None);
        assert_eq!(id("a b"), None);
        assert_eq!(id("é"), None);
        assert_eq!(id(&"a".repeat(129)), None);
    }
}
