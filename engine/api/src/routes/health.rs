//! `GET /health`: whether the server works, and how much it has to do. Needs no API key.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use linnet_runtime::EngineHealth;
use serde_json::json;

use crate::state::ApiState;

/// `status` is `ok`; `failing` when a model's latest steps failed (still 200: requests may be tried); `down` with 503
/// when a model's engine has ended.
pub(super) async fn health(State(state): State<Arc<ApiState>>) -> Response {
    let models = state.provider.loaded();
    let statuses: Vec<_> = models.iter().map(|card| card.model.engine.status()).collect();
    let is_down = statuses.iter().any(|status| matches!(status.health, EngineHealth::Gone(_)));
    let is_failing = statuses.iter().any(|status| matches!(status.health, EngineHealth::Failing { .. }));
    let (code, status) = match (is_down, is_failing) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "down"),
        (false, true) => (StatusCode::OK, "failing"),
        (false, false) => (StatusCode::OK, "ok"),
    };
    let body = json!({
        "status": status,
        "active": statuses.iter().map(|status| status.active).sum::<usize>(),
        "queued": statuses.iter().map(|status| status.queued).sum::<usize>(),
        "model": models.first().map(|card| &card.model.id),
        "version": env!("CARGO_PKG_VERSION"),
    });
    (code, Json(body)).into_response()
}
