//! The caller's end of a request.

use std::task::{Context, Poll};

use tokio::sync::mpsc::UnboundedReceiver;

use crate::{GenerationEvent, StepModelError};

/// A request in work. Dropping it cancels the request, wherever it stands.
///
/// Events that are not read wait here; there can be no more of them than the request has tokens, so the engine never
/// waits for a slow reader.
#[derive(Debug)]
pub struct Generation {
    events: UnboundedReceiver<GenerationEvent>,
    ended: bool,
}

impl Generation {
    pub(super) fn new(events: UnboundedReceiver<GenerationEvent>) -> Self {
        Self { events, ended: false }
    }

    /// The next event; `None` after [`GenerationEvent::Finished`] or [`GenerationEvent::Failed`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// [`Generation::next`] for implementors of streams.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<GenerationEvent>> {
        self.events.poll_recv(context).map(|event| self.note(event))
    }

    /// [`Generation::next`] for threads. Must not be called on an async executor's thread.
    pub fn blocking_next(&mut self) -> Option<GenerationEvent> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    // A channel that closes without a last event means that the thread died.
    fn note(&mut self, event: Option<GenerationEvent>) -> Option<GenerationEvent> {
        let event = match event {
            None if self.ended => return None,
            None => GenerationEvent::Failed(StepModelError::EngineGone("its thread ended unexpectedly".into())),
            Some(event) => event,
        };
        self.ended |= matches!(event, GenerationEvent::Finished { .. } | GenerationEvent::Failed(_));
        Some(event)
    }
}
