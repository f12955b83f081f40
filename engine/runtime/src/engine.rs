//! The engine: one thread that owns a loaded model and serves many requests with it.
//!
//! [`Engine`] is the handle; [`worker`] is the thread's loop, which obeys the decisions of [`plan`]; [`cost`] is what those
//! know of the time that steps take and [`share`] how prompts share one; [`sequence`] is one request's state from prompt
//! to last token; [`inbox`] is what handle and thread share. Nothing that belongs to the model leaves the thread.

mod cache;
mod cost;
mod generation;
mod inbox;
mod output;
mod plan;
mod retry_after;
mod sequence;
mod share;
mod status;
mod worker;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

pub use generation::Generation;
pub use status::{EngineHealth, EngineStatus, KvStatus};

use linnet_kernels::CoreTurns;

use self::{
    inbox::{Command, Inbox, Submission},
    worker::Worker,
};
use crate::{
    CacheFlush, CacheStatus, EngineText, GenerationRequest, StepModel, StepModelError, SubmitError, ssd::SsdTier,
};

/// How an engine shares its model among requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// How many requests run at once; the others wait. At least 1.
    pub max_concurrent: usize,
    /// How many requests may wait; more are refused with [`SubmitError::QueueFull`].
    pub queue_limit: usize,
    /// The most tokens to generate for a request that names no limit, cut to the room in the context. `None`: the room
    /// in the context.
    pub default_max_tokens: Option<usize>,
    /// How long running answers may have to wait for their next token because a prompt is being read. Prompts are read in
    /// smaller pieces to keep to it; a request that runs alone is not concerned.
    pub max_stall: Duration,
    /// Bytes of keys and values that are kept in memory for later requests and that no running request uses; 0 keeps none.
    pub prefix_cache_bytes: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_concurrent: 8,
            queue_limit: 64,
            default_max_tokens: None,
            max_stall: Duration::from_millis(200),
            prefix_cache_bytes: 2 << 30,
        }
    }
}

/// A running engine. Clones share it; when the last one is dropped the thread ends, and what still runs fails with
/// [`StepModelError::EngineGone`].
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

struct Handle {
    name: String,
    options: EngineOptions,
    context_length: usize,
    vocabulary_size: usize,
    kv_capacity: usize,
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread reports when the model is loaded.
struct Loaded {
    context_length: usize,
    vocabulary_size: usize,
    kv_capacity: usize,
}

impl Engine {
    /// Starts the engine thread, builds the model on it with `load`, and returns once it is loaded. Blocks until then.
    ///
    /// `name` is the model's, for the thread and for messages.
    ///
    /// # Errors
    /// What `load` returned; [`StepModelError::EngineGone`] if it panicked or no thread could be started.
    pub fn start<M: StepModel + 'static>(
        name: &str,
        options: EngineOptions,
        text: EngineText,
        load: impl FnOnce() -> Result<M, StepModelError> + Send + 'static,
    ) -> Result<Self, StepModelError> {
        Self::start_with_disk(name, options, text, None, load)
    }

    /// As [`Engine::start`], with a tier on disk for what is kept of prompts and answers. Several engines may share one.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_with_disk<M: StepModel + 'static>(
        name: &str,
        options: EngineOptions,
        text: EngineText,
        disk: Option<Arc<SsdTier>>,
        load: impl FnOnce() -> Result<M, StepModelError> + Send + 'static,
    ) -> Result<Self, StepModelError> {
        let options = EngineOptions { max_concurrent: options.max_concurrent.max(1), ..options };
        let inbox = Arc::new(Inbox::new(options.queue_limit, options.max_concurrent));
        let (report, loaded) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(format!("engine {name}"))
            .spawn({
                let inbox = Arc::clone(&inbox);
                move || {
                    let model = match catch_unwind(AssertUnwindSafe(load)) {
                        Ok(Ok(model)) => model,
                        Ok(Err(error)) => return drop(report.send(Err(error))),
                        Err(panic) => {
                            let message = format!("loading the model panicked: {}", worker::panic_message(&*panic));
                            return drop(report.send(Err(StepModelError::EngineGone(message))));
                        }
                    };
                    let facts = Loaded {
                        context_length: model.context_length(),
                        vocabulary_size: model.vocabulary_size(),
                        kv_capacity: model.kv_budget().capacity,
                    };
                    let worker = Worker::new(model, Arc::clone(&inbox), text, &options, disk);
                    if report.send(Ok(facts)).is_ok() {
                        // Everything that can fail is caught closer by; this keeps callers from waiting for ever should
                        // the loop itself be at fault.
                        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
                            inbox.close(&format!("its thread panicked: {}", worker::panic_message(&*panic)));
                        }
                    }
                }
            })
            .map_err(|error| StepModelError::EngineGone(format!("its thread could not be started: {error}")))?;
        let Loaded { context_length, vocabulary_size, kv_capacity } = loaded
            .recv()
            .unwrap_or_else(|_| Err(StepModelError::EngineGone("its thread ended while loading".into())))?;
        Ok(Self {
            handle: Arc::new(Handle {
                name: name.into(),
                options,
                context_length,
                vocabulary_size,
                kv_capacity,
                inbox,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Lets urgent work that is marked in `turns` go before this engine's steps: both compute on the same cores. Only the
    /// first call counts.
    pub fn give_way_to(&self, turns: Arc<CoreTurns>) {
        self.handle.inbox.give_way_to(turns);
    }

    /// Hands a request to the engine. Returns at once; the answer comes as events, and dropping the [`Generation`]
    /// cancels the request.
    ///
    /// # Errors
    /// See [`SubmitError`]: every fault of a request that can be known beforehand is refused here.
    pub fn submit(&self, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let handle = &*self.handle;
        let context = handle.context_length.min(handle.kv_capacity);
        request.validate(handle.vocabulary_size)?;
        let limit = request.resolve_max_tokens(context, handle.options.default_max_tokens)?;
        let (submission, generation) = Submission::new(request, limit);
        handle.inbox.push(submission)?;
        Ok(generation)
    }

    /// Writes what is kept and not yet on the disk, and waits until that is done. Blocks; what runs goes on meanwhile.
    #[must_use]
    pub fn flush_cache(&self) -> CacheFlush {
        self.handle.inbox.ask(Command::Flush).unwrap_or_default()
    }

    /// What is kept of prompts and answers.
    #[must_use]
    pub fn cache_status(&self) -> CacheStatus {
        self.handle.inbox.cache_status()
    }

    /// Forgets a session's name; what it points to stays. Returns whether the name was known. Blocks for at most one step
    /// of the model.
    #[must_use]
    pub fn close_session(&self, session: &str) -> bool {
        self.handle.inbox.ask(|answer| Command::CloseSession(session.into(), answer)).unwrap_or_default()
    }

    /// Gives up all that is kept in memory and that no running request uses, and all session names. What is on the disk
    /// stays there.
    /// Blocks for at most one step of the model.
    pub fn clear_cache(&self) {
        // An engine that is gone keeps nothing.
        self.handle.inbox.ask(Command::Clear).unwrap_or_default();
    }

    /// What the engine is doing and has done.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        self.handle.inbox.status()
    }

    /// The model's name, as given to [`Engine::start`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// How the engine shares its model.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.handle.options
    }

    /// The most tokens, prompt and answer together, that one request can use.
    #[must_use]
    pub fn context_length(&self) -> usize {
        self.handle.context_length.min(self.handle.kv_capacity)
    }

    /// How many tokens the model knows.
    #[must_use]
    pub fn vocabulary_size(&self) -> usize {
        self.handle.vocabulary_size
    }

    /// Ends the engine and waits until its thread has freed the model. What still runs or waits fails with
    /// [`StepModelError::EngineGone`]; later requests are refused. What is kept of prompts and answers is written to the
    /// disk, if there is a tier there. Blocks for one step of the model and as long as that takes, at most two minutes.
    pub fn stop(&self) {
        self.handle.inbox.stop("it was stopped");
        let thread = self.handle.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(model = self.handle.name, "the engine thread panicked while it stopped");
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Engine").field("name", &self.handle.name).finish_non_exhaustive()
    }
}

// The thread is told to end but not waited for: the last handle may be dropped on an async executor's thread.
impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.stop("every handle to it was dropped");
    }
}

#[cfg(test)]
mod tests;
