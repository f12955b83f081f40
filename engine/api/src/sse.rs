//! Answers as server-sent events.
//!
//! The stream is `data: {chunk}` events, then `data: [DONE]`, always: also after an error, which comes as one
//! `data: {"error": ...}` event. While nothing is sent for a while, as in a long prefill, a comment keeps the connection
//! open; it is driven by the silence on the socket and not by the engine.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde_json::Value;

use crate::answer::{AnswerShape, Progress, Running};

const DONE: &str = "[DONE]";

/// The streaming response of a running generation.
pub(crate) fn respond(running: Running, shape: impl AnswerShape, keep_alive: Duration) -> Response {
    let keep_alive = KeepAlive::new().interval(keep_alive).text("keep-alive");
    let mut response = Sse::new(events(running, shape)).keep_alive(keep_alive).into_response();
    // Proxies such as nginx would otherwise collect the answer before passing it on.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

struct State<S> {
    running: Option<Running>,
    shape: S,
    /// Events that are ready to go.
    ready: VecDeque<Event>,
}

fn events<S: AnswerShape>(running: Running, mut shape: S) -> impl Stream<Item = Result<Event, Infallible>> {
    let ready = shape.opening().iter().map(event).collect();
    futures::stream::unfold(State { running: Some(running), shape, ready }, |mut state| async {
        loop {
            if let Some(event) = state.ready.pop_front() {
                return Some((Ok(event), state));
            }
            let progress = state.running.as_mut()?.next().await;
            state.take(progress);
        }
    })
}

impl<S: AnswerShape> State<S> {
    fn take(&mut self, progress: Progress) {
        match progress {
            Progress::Text { text, logprobs } => self.ready.push_back(event(&self.shape.piece(&text, &logprobs))),
            Progress::Finished { reason, usage } => {
                self.ready.push_back(event(&self.shape.closing(reason)));
                if self.shape.head().options.include_usage {
                    self.ready.push_back(event(&self.shape.usage_chunk(&usage)));
                }
                self.finish();
            }
            Progress::Failed(error) => {
                self.ready.push_back(event(&error.body()));
                self.finish();
            }
        }
    }

    fn finish(&mut self) {
        self.ready.push_back(Event::default().data(DONE));
        self.running = None;
    }
}

fn event(chunk: &Value) -> Event {
    Event::default().data(chunk.to_string())
}
