//! The thread that owns a speech model and recognises with it.
//!
//! [`SpeechEngine`] is the handle, [`queue`] what handle and thread share, [`worker`] the thread's loop. The model is loaded
//! when it is first needed and let go when nobody has used it for a while; weights are mapped, so that loading it again
//! takes little. Live speech goes before files; within either, first come, first served. Dropping a [`Recognition`] ends
//! its work.

mod queue;
mod worker;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    thread::JoinHandle,
    time::Duration,
};

use linnet_kernels::CoreTurns;
use tokio::sync::oneshot;

use crate::{Recognizer, TranscribeOptions, Transcript};

use queue::{Job, Queue};

/// How a speech engine works.
#[derive(Debug, Clone)]
pub struct SpeechEngineOptions {
    /// How long a model that nobody uses stays in memory; `None`: for good.
    pub idle_unload: Option<Duration>,
    /// Work that may wait; more is refused.
    pub queue_limit: usize,
    /// Who may compute: live speech goes before whatever else asks here.
    pub turns: Arc<CoreTurns>,
}

impl SpeechEngineOptions {
    /// How long a model that nobody uses stays in memory unless told otherwise: long enough that somebody who dictates now
    /// and then never waits for it, short enough that a chat model gets the room back.
    pub const DEFAULT_IDLE_UNLOAD: Duration = Duration::from_secs(5 * 60);
}

impl Default for SpeechEngineOptions {
    fn default() -> Self {
        Self { idle_unload: Some(Self::DEFAULT_IDLE_UNLOAD), queue_limit: 256, turns: Arc::default() }
    }
}

/// Who waits for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeechPriority {
    /// Somebody speaks.
    Live,
    /// A file.
    File,
}

/// Why there is no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpeechError {
    /// The model cannot be loaded.
    #[error("the speech model cannot be loaded: {0}")]
    Load(String),
    /// What was asked for does not suit the model.
    #[error("{0}")]
    Request(String),
    /// The model failed.
    #[error("the speech model failed: {0}; the audio is kept, try again")]
    Failed(String),
    /// Whoever asked wants it no more, or the model was told to give up.
    #[error("the transcription was cancelled")]
    Cancelled,
    /// Too much waits already.
    #[error("{waiting} pieces of audio wait for the speech model already; try again in a few seconds")]
    QueueFull {
        /// How many.
        waiting: usize,
    },
    /// The engine's thread is gone.
    #[error("the speech engine has ended; start the server again")]
    Gone,
}

/// What a speech engine does and has done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpeechStatus {
    /// Whether the model is in memory.
    pub loaded: bool,
    /// Whether it stays there.
    pub pinned: bool,
    /// Sessions and requests that need it.
    pub holds: usize,
    /// Pieces of audio that wait.
    pub queued: usize,
    /// Whether one is being recognised.
    pub busy: bool,
    /// How often it was loaded.
    pub loads: u64,
    /// How often it was let go.
    pub unloads: u64,
    /// How long the last load took.
    pub last_load: Duration,
    /// Pieces of audio taken.
    pub requests: u64,
    /// Those that got their text.
    pub finished: u64,
    /// Those that were called off.
    pub cancelled: u64,
    /// Those that failed.
    pub failed: u64,
    /// Seconds of audio that got their text.
    pub audio_seconds: f64,
    /// Seconds it took.
    pub busy_seconds: f64,
    /// What went wrong last, until something goes well.
    pub problem: Option<String>,
}

/// A running engine. Clones share it; when the last one is dropped its thread ends.
#[derive(Clone)]
pub struct SpeechEngine {
    handle: Arc<Handle>,
}

struct Handle {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SpeechEngine {
    /// Starts the thread. `load` is called on it whenever the model is needed and not there.
    ///
    /// # Errors
    /// [`SpeechError::Gone`] when the system gives no thread.
    pub fn start<L>(name: &str, options: SpeechEngineOptions, load: L) -> Result<Self, SpeechError>
    where
        L: Fn() -> Result<Box<dyn Recognizer>, SpeechError> + Send + 'static,
    {
        let queue = Arc::new(Queue::new(options));
        let inner = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name(format!("speech {name}"))
            .spawn(move || worker::run(&inner, &load))
            .map_err(|_| SpeechError::Gone)?;
        Ok(Self { handle: Arc::new(Handle { queue, thread: Mutex::new(Some(thread)) }) })
    }

    /// Asks for the text of mono samples at 16 kHz.
    #[must_use]
    pub fn recognize(
        &self,
        samples: Arc<Vec<f32>>,
        options: TranscribeOptions,
        priority: SpeechPriority,
    ) -> Recognition {
        let (sender, receiver) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        self.handle.queue.submit(Job { samples, options, priority, sender, cancelled: Arc::clone(&cancelled) });
        Recognition { receiver, cancelled }
    }

    /// Keeps the model in memory while the hold lives, and loads it if need be, in the background.
    #[must_use]
    pub fn hold(&self) -> SpeechHold {
        self.handle.queue.hold();
        SpeechHold { queue: Arc::clone(&self.handle.queue) }
    }

    /// Keeps the model in memory for good, or no longer.
    pub fn pin(&self, pinned: bool) {
        self.handle.queue.pin(pinned);
    }

    /// Lets the model go as soon as nothing is being recognised. `false`: sessions or requests need it.
    #[must_use]
    pub fn unload(&self) -> bool {
        self.handle.queue.ask_unload()
    }

    /// What it does and has done.
    #[must_use]
    pub fn status(&self) -> SpeechStatus {
        self.handle.queue.status()
    }
}

impl fmt::Debug for SpeechEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SpeechEngine").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The loop catches what panics in it.
            let _ = thread.join();
        }
    }
}

/// Somebody needs the model. See [`SpeechEngine::hold`].
pub struct SpeechHold {
    queue: Arc<Queue>,
}

impl fmt::Debug for SpeechHold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SpeechHold").finish_non_exhaustive()
    }
}

impl Drop for SpeechHold {
    fn drop(&mut self) {
        self.queue.release();
    }
}

/// A text to come. Dropped, its work is called off.
#[derive(Debug)]
pub struct Recognition {
    receiver: oneshot::Receiver<Result<Transcript, SpeechError>>,
    cancelled: Arc<AtomicBool>,
}

impl Recognition {
    /// Calls the work off; the text is then [`SpeechError::Cancelled`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits for the text; not on a thread that runs async tasks.
    ///
    /// # Errors
    /// [`SpeechError`].
    pub fn wait(mut self) -> Result<Transcript, SpeechError> {
        let (_, nothing) = oneshot::channel();
        std::mem::replace(&mut self.receiver, nothing).blocking_recv().unwrap_or(Err(SpeechError::Gone))
    }

    /// The text, if it is there already.
    #[must_use]
    pub fn poll_now(&mut self) -> Option<Result<Transcript, SpeechError>> {
        match self.receiver.try_recv() {
            Ok(result) => Some(result),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(SpeechError::Gone)),
        }
    }
}

impl Future for Recognition {
    type Output = Result<Transcript, SpeechError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(context).map(|result| result.unwrap_or(Err(SpeechError::Gone)))
    }
}

impl Drop for Recognition {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[cfg(test)]
mod tests;
