//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::provider::{ModelCard, ModelState};
use crate::state::ApiState;

/// All models, in memory or not.
pub(super) async fn list(State(state): State<Arc<ApiState>>) -> Result<Json<Value>, ApiError> {
    let mut cards = state.provider.list().await?;
    if let Some(speech) = &state.speech {
        cards.extend(speech.list().await?);
    }
    let data: Vec<Value> = cards.iter().map(model_json).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

/// One model.
pub(super) async fn retrieve(
    State(state): State<Arc<ApiState>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // A name that is not even text belongs to no model.
    let name = id.map_or_else(|_| "?".to_owned(), |Path(name)| name);
    let error = match state.provider.card(&name).await {
        Ok(card) => return Ok(Json(model_json(&card))),
        Err(error) => error,
    };
    match &state.speech {
        // OpenAI's names stand for whatever is the default; there is no such model.
        Some(speech) if matches!(error, ApiError::ModelNotFound { .. }) => match speech.card(Some(&name)).await {
            Ok(card) => Ok(Json(model_json(&card))),
            Err(_) => Err(error),
        },
        _ => Err(error),
    }
}

/// OpenAI's object, with what a local client wants to know besides: `context_length` and `loaded` beside OpenAI's fields,
/// as other local servers have them, the rest in an object of its own.
pub(super) fn model_json(card: &ModelCard) -> Value {
    let ModelCard { facts, residency } = card;
    json!({
        "id": facts.id,
        "object": "model",
        "created": facts.created,
        "owned_by": "linnet",
        "context_length": facts.context_length,
        "loaded": residency.state == ModelState::Ready,
        "linnet": {
            "kind": facts.kind.name(),
            "state": residency.state.name(),
            "pinned": residency.pinned,
            "requests": residency.requests,
            "memory_bytes": residency.memory_bytes,
            "idle_seconds": residency.idle_for.as_secs(),
            "size_on_disk": facts.size_on_disk,
            "architecture": facts.architecture,
            "quantization": facts.quantization,
            "parameters": facts.parameters,
            "problem": facts.problem,
        },
    })
}
