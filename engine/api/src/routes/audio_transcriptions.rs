//! `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use linnet_speech::{FinishedWindow, Task};
use serde_json::{Value, json};

use crate::body::read_json;
use crate::error::ApiError;
use crate::form::{is_form, read_form};
use crate::quote::shortened;
use crate::speech::transcription::FileTranscription;
use crate::state::ApiState;
use crate::wire::audio_request::{SpeechFields, TranscriptionRequest};
use crate::wire::transcript_response::{respond, transcript_json};

/// What was said, in its language.
pub(super) async fn transcribe(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(state, &headers, body, Task::Transcribe).await
}

/// What was said, in English.
pub(super) async fn translate(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    answer(state, &headers, body, Task::Translate).await
}

async fn answer(state: Arc<ApiState>, headers: &HeaderMap, body: Body, task: Task) -> Result<Response, ApiError> {
    let request = read(&state, headers, body, task).await?;
    let TranscriptionRequest { speech: fields, file, file_name, stream, vad } = request;
    let model = fields.model.as_deref();
    let begun = FileTranscription::begin(state.speech()?, model, file, file_name, fields.options.clone(), vad).await;
    let run = match begun {
        Ok(run) => run,
        Err(error) => return Err(state.explain_not_speech(model, error).await),
    };
    let mut running = Running { state, run: Box::new(run), windows: Vec::new(), fields };
    if stream {
        return Ok(stream_of(running));
    }
    while running.next().await?.is_some() {}
    let (text, transcript) = running.run.result(&running.windows);
    Ok(respond(&running.fields, running.run.model(), &text, &transcript))
}

async fn read(state: &ApiState, headers: &HeaderMap, body: Body, task: Task) -> Result<TranscriptionRequest, ApiError> {
    let limit = state.options.audio_limit;
    if is_form(headers) {
        return TranscriptionRequest::from_form(read_form(headers, body, limit).await?, task);
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().contains("json") {
        return Err(ApiError::UnsupportedMedia {
            found: shortened(kind),
            expected: "multipart/form-data with a `file`, or application/json with the audio as base64",
        });
    }
    TranscriptionRequest::from_json(&read_json(headers, body, limit).await?, task)
}

/// A recording in work. Dropped, as it is when the client leaves, its work is called off.
struct Running {
    state: Arc<ApiState>,
    run: Box<FileTranscription>,
    windows: Vec<FinishedWindow>,
    fields: SpeechFields,
}

impl Running {
    /// What the next window adds to the text.
    async fn next(&mut self) -> Result<Option<String>, ApiError> {
        let before = self.run.text_so_far(&self.windows).len();
        let mut cut_off = self.state.cut_off();
        let window = tokio::select! {
            window = self.run.next() => window?,
            _ = cut_off.wait_for(|is_cut| *is_cut) => return Err(ApiError::ShuttingDown),
        };
        let Some(window) = window else { return Ok(None) };
        self.windows.push(window);
        Ok(Some(self.run.text_so_far(&self.windows).get(before..).unwrap_or_default().to_owned()))
    }
}

/// OpenAI's events: a piece of text after every window, and the whole at the end.
fn stream_of(running: Running) -> Response {
    let keep_alive = KeepAlive::new().interval(running.state.options.keep_alive).text("keep-alive");
    let mut response = Sse::new(events(running)).keep_alive(keep_alive).into_response();
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn events(running: Running) -> impl Stream<Item = Result<Event, Infallible>> {
    let ready: VecDeque<Event> = VecDeque::new();
    futures::stream::unfold((Some(running), ready), |(mut running, mut ready)| async {
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((Ok(event), (running, ready)));
            }
            let work = running.as_mut()?;
            match work.next().await {
                Ok(Some(delta)) if delta.is_empty() => {}
                Ok(Some(delta)) => ready.push_back(event(&json!({ "type": "transcript.text.delta", "delta": delta }))),
                Ok(None) => {
                    let (text, transcript) = work.run.result(&work.windows);
                    let mut done = transcript_json(&work.fields, work.run.model(), &text, &transcript);
                    done["type"] = "transcript.text.done".into();
                    ready.extend([event(&done), Event::default().data("[DONE]")]);
                    running = None;
                }
                Err(error) => {
                    ready.extend([event(&error.body()), Event::default().data("[DONE]")]);
                    running = None;
                }
            }
        }
    })
}

fn event(value: &Value) -> Event {
    Event::default().data(value.to_string())
}
