//! `/v1/audio/sessions`: live speech in pieces.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::body::{read_bytes, read_optional_json};
use crate::error::ApiError;
use crate::speech::live::{LiveSession, LiveState};
use crate::state::ApiState;
use crate::wire::audio_session::{AudioKind, SessionRequest, read_kind, session_json};
use crate::wire::transcript_response::respond;

/// Opens a session and loads its model in the background.
pub(super) async fn open(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_optional_json(&headers, body, state.options.body_limit).await?;
    let session = open_session(&state, &body).await?;
    Ok((StatusCode::CREATED, Json(state_json(&session))).into_response())
}

/// Opens the session that a body describes.
pub(super) async fn open_session(state: &ApiState, body: &Value) -> Result<Arc<LiveSession>, ApiError> {
    let SessionRequest { speech: fields, options } = SessionRequest::read(body)?;
    let speech = state.speech()?;
    speech.sessions.check()?;
    let name = fields.model.as_deref();
    let (model, engine) = match speech.engine(name).await {
        Ok(found) => found,
        Err(error) => return Err(state.explain_not_speech(name, error).await),
    };
    let session = LiveSession::open(model, &engine, speech.vad(), fields, options);
    speech.sessions.insert(&session)?;
    Ok(session)
}

/// Takes in a piece of audio.
pub(super) async fn push(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let session = state.speech()?.sessions.get(&id)?;
    let kind = read_kind(&headers)?;
    let bytes = read_bytes(&headers, body, state.options.audio_limit).await?;
    match kind {
        AudioKind::Pcm(format) => session.push_pcm(format, bytes).await?,
        AudioKind::File => session.push_file(bytes).await?,
    }
    Ok(Json(state_json(&session)))
}

/// How a session stands.
pub(super) async fn show(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    Ok(Json(state_json(&*state.speech()?.sessions.get(&id)?)))
}

/// Ends the audio and answers with the whole transcript. After a failure it tries again.
pub(super) async fn finish(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let session = state.speech()?.sessions.get(&id)?;
    let has_failed = session.view().state == LiveState::Failed;
    if has_failed {
        session.retry();
    }
    match session.end().await {
        // The audio had ended before it failed.
        Err(ApiError::SessionFinished { .. }) if has_failed => {}
        other => other?,
    }
    let mut cut_off = state.cut_off();
    let (text, transcript) = tokio::select! {
        result = session.wait() => result?,
        _ = cut_off.wait_for(|is_cut| *is_cut) => return Err(ApiError::ShuttingDown),
    };
    Ok(respond(session.fields(), session.model(), &text, &transcript))
}

/// Closes a session; its work is called off.
pub(super) async fn close(State(state): State<Arc<ApiState>>, Path(id): Path<String>) -> Result<StatusCode, ApiError> {
    state.speech()?.sessions.remove(&id)?;
    Ok(StatusCode::NO_CONTENT)
}

/// The state of a session as an object.
pub(super) fn state_json(session: &LiveSession) -> Value {
    session_json(session.id(), session.model(), &session.view())
}
