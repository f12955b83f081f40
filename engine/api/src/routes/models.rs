//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::provider::ModelCard;
use crate::quote::shortened;
use crate::state::ApiState;

/// All models, loaded or not.
pub(super) async fn list(State(state): State<Arc<ApiState>>) -> Json<Value> {
    let data: Vec<Value> = state.provider.list().iter().map(model_json).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// One model.
pub(super) async fn retrieve(
    State(state): State<Arc<ApiState>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // A name that is not even text belongs to no model.
    let name = id.map_or_else(|_| "?".to_owned(), |Path(name)| name);
    match state.provider.card(&name) {
        Some(card) => Ok(Json(model_json(&card))),
        None => {
            let available = state.provider.list().into_iter().map(|card| card.id).collect();
            Err(ApiError::ModelNotFound { model: shortened(&name), available })
        }
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
