//! `POST /admin/models/load`, `/unload` and `/pin`: which models are in memory.
//!
//! Each names one with `model` and answers with its card, as `GET /v1/models/{id}` does.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::Value;

use super::models::model_json;
use crate::body::read_json;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::provider::ModelCard;
use crate::speech::SpeechManager;
use crate::state::ApiState;

/// Loads a model and waits until it is there.
pub(super) async fn load(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = read_json(&headers, body, state.options.body_limit).await?;
    let name = model_name(&Fields::root(&body)?)?;
    // Held until its card was read.
    match state.provider.get(Some(&name)).await {
        Ok(_lease) => Ok(Json(model_json(&state.provider.card(&name).await?))),
        Err(error) => or_speech(&state, error, async |speech| speech.load(&name).await).await,
    }
}

/// Takes a model out of memory, pinned or not; refused while requests use it.
pub(super) async fn unload(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = read_json(&headers, body, state.options.body_limit).await?;
    let name = model_name(&Fields::root(&body)?)?;
    match state.provider.unload(&name).await {
        Ok(card) => Ok(Json(model_json(&card))),
        Err(error) => or_speech(&state, error, async |speech| speech.unload(&name).await).await,
    }
}

/// Keeps a model in memory (loading it if need be), or with `"pinned": false` no longer.
pub(super) async fn pin(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = read_json(&headers, body, state.options.body_limit).await?;
    let fields = Fields::root(&body)?;
    let name = model_name(&fields)?;
    let pinned = fields.optional_flag("pinned")?.unwrap_or(true);
    match state.provider.pin(&name, pinned).await {
        Ok(card) => Ok(Json(model_json(&card))),
        Err(error) => or_speech(&state, error, async |speech| speech.pin(&name, pinned).await).await,
    }
}

/// What `work` makes of the speech model of a name that is no text model's; `error` if it is none either.
async fn or_speech(
    state: &ApiState,
    error: ApiError,
    work: impl AsyncFnOnce(&SpeechManager) -> Result<ModelCard, ApiError>,
) -> Result<Json<Value>, ApiError> {
    let (ApiError::ModelNotFound { .. }, Some(speech)) = (&error, &state.speech) else { return Err(error) };
    match work(speech).await {
        Ok(card) => Ok(Json(model_json(&card))),
        Err(ApiError::ModelNotFound { .. } | ApiError::NoSpeechModel) => Err(error),
        Err(other) => Err(other),
    }
}

fn model_name(fields: &Fields<'_>) -> Result<String, ApiError> {
    let name = fields.require("model", "a model's name")?;
    match name.text()? {
        "" => Err(name.expected("a model's name")),
        text => Ok(text.to_owned()),
    }
}
