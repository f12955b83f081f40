//! `GET /v1/audio/sessions/{id}/stream` and `/v1/audio/stream`: a session over a WebSocket.
//!
//! Binary messages are bare samples, 32-bit floats at 16 kHz unless the address says `rate`, `encoding` or `channels`.
//! Text messages are objects: `{"type": "finish"}` ends the audio, `{"type": "retry"}` tries again what failed. The server
//! sends `session` first, `transcript.partial` whenever the text or the microphone's state changed,
//! `transcript.text.done` with the whole transcript, and `error`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use linnet_speech::PcmFormat;
use serde_json::{Map, Value, json};

use super::audio_sessions::{open_session, state_json};
use crate::error::ApiError;
use crate::speech::live::{LiveSession, LiveState};
use crate::state::ApiState;
use crate::wire::audio_session::read_pcm;
use crate::wire::transcript_response::transcript_json;

/// The longest message: a minute of 32-bit floats at 48 kHz, with room.
const LONGEST_MESSAGE: usize = 16 << 20;

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// Joins an open session.
pub(super) async fn join(
    State(state): State<Arc<ApiState>>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    upgrade: Upgrade,
) -> Result<Response, ApiError> {
    let session = state.speech()?.sessions.get(&id)?;
    let format = pcm_of(&query)?;
    start(upgrade, state, session, format, false)
}

/// Opens a session of its own, which ends with the connection. The address carries the fields as texts.
pub(super) async fn open(
    State(state): State<Arc<ApiState>>,
    Query(query): Query<HashMap<String, String>>,
    upgrade: Upgrade,
) -> Result<Response, ApiError> {
    let format = pcm_of(&query)?;
    let mut body = Map::new();
    for (name, text) in query {
        let value = match text.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            text => text.parse::<f64>().map_or_else(|_| text.into(), Into::into),
        };
        body.insert(name, value);
    }
    let session = open_session(&state, &Value::Object(body)).await?;
    start(upgrade, state, session, format, true)
}

fn pcm_of(query: &HashMap<String, String>) -> Result<PcmFormat, ApiError> {
    read_pcm(query.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

fn start(
    upgrade: Upgrade,
    state: Arc<ApiState>,
    session: Arc<LiveSession>,
    format: PcmFormat,
    is_own: bool,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|error| ApiError::InvalidField {
        field: "upgrade".to_owned(),
        problem: format!("expected a WebSocket: {error}"),
    })?;
    Ok(upgrade.max_message_size(LONGEST_MESSAGE).on_upgrade(move |socket| async move {
        let id = session.id().to_owned();
        let mut connection = Connection { socket, session, format, shown: None };
        // A client that is gone needs no word of it.
        let _ = connection.run(&state).await;
        if is_own && let Some(speech) = &state.speech {
            let _ = speech.sessions.remove(&id);
        }
    }))
}

struct Connection {
    socket: WebSocket,
    session: Arc<LiveSession>,
    format: PcmFormat,
    /// What was sent last.
    shown: Option<Value>,
}

impl Connection {
    async fn run(&mut self, state: &ApiState) -> Result<(), axum::Error> {
        let mut seen = self.session.watch();
        let mut cut_off = state.cut_off();
        let mut first = state_json(&self.session);
        first["type"] = "session".into();
        self.send(&first).await?;
        loop {
            let is_cut = async { drop(cut_off.wait_for(|is_cut| *is_cut).await) };
            tokio::select! {
                message = self.socket.recv() => match message {
                    None | Some(Err(_)) | Some(Ok(Message::Close(_))) => return Ok(()),
                    Some(Ok(message)) => if let Err(error) = self.take(message).await {
                        self.send_error(&error).await?;
                    },
                },
                changed = seen.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    if self.show().await? {
                        return self.socket.send(Message::Close(None)).await;
                    }
                }
                () = is_cut => {
                    self.send_error(&ApiError::ShuttingDown).await?;
                    return Ok(());
                }
            }
        }
    }

    async fn take(&mut self, message: Message) -> Result<(), ApiError> {
        match message {
            Message::Binary(bytes) => self.session.push_pcm(self.format, bytes.to_vec()).await,
            Message::Text(text) => {
                let value: Value = serde_json::from_str(&text).map_err(|error| ApiError::InvalidJson {
                    detail: error.to_string(),
                    line: error.line(),
                    column: error.column(),
                })?;
                match value["type"].as_str() {
                    Some("finish") => self.session.end().await,
                    Some("retry") => {
                        self.session.retry();
                        Ok(())
                    }
                    _ => Err(ApiError::InvalidField {
                        field: "type".to_owned(),
                        problem: "expected finish or retry; audio comes in binary messages".to_owned(),
                    }),
                }
            }
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => Ok(()),
        }
    }

    /// Sends what changed. Returns whether the transcript is complete and was sent.
    async fn show(&mut self) -> Result<bool, axum::Error> {
        let view = self.session.view();
        if view.state == LiveState::Finished {
            let result = self.session.wait().await;
            let message = match result {
                Ok((text, transcript)) => {
                    let mut done = transcript_json(self.session.fields(), self.session.model(), &text, &transcript);
                    done["type"] = "transcript.text.done".into();
                    done
                }
                Err(error) => error_json(&error),
            };
            self.send(&message).await?;
            return Ok(true);
        }
        let state = state_json(&self.session);
        let now = json!({
            "type": "transcript.partial",
            "committed": state["text"]["committed"],
            "tail": state["text"]["tail"],
            "microphone": state["microphone"],
            "state": state["state"],
            "problem": state["problem"],
        });
        if self.shown.as_ref() != Some(&now) {
            self.send(&now).await?;
            self.shown = Some(now);
        }
        Ok(false)
    }

    async fn send_error(&mut self, error: &ApiError) -> Result<(), axum::Error> {
        self.send(&error_json(error)).await
    }

    async fn send(&mut self, value: &Value) -> Result<(), axum::Error> {
        self.socket.send(Message::Text(value.to_string().into())).await
    }
}

fn error_json(error: &ApiError) -> Value {
    let mut body = error.body();
    body["type"] = "error".into();
    body
}
