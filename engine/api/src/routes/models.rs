//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::provider::ModelCard;
use crate::state::ApiState;

/// All models, loaded or not.
pub(super) async fn list(State(state): State<Arc<ApiState>>) -> Json<Value> {
    let data: Vec<Value> = state.provider.list().iter().map(model_json).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One model.
pub(super) async fn retrieve(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let cards = state.provider.list();
    match cards.iter().find(|card| card.id == id) {
        Some(card) => Ok(Json(model_json(card))),
        None => Err(ApiError::ModelNotFound { model: id, available: cards.into_iter().map(|card| card.id).collect() }),
    }
}

/// OpenAI's object, with what a local client wants to know besides.
fn model_json(card: &ModelCard) -> Value {
    json!({
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "linnet",
        "context_length": card.context_length,
        "loaded": card.loaded,
    })
}
