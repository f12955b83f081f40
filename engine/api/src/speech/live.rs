//! One stream of speech on its way to text, while it is spoken.
//!
//! The session decides what is to be recognised; a task of its own asks the engine for it and tells the session, so that a
//! window is recognised while the next is spoken. When the last holder of a [`LiveSession`] is gone, the task ends, and with
//! it what the engine was working on.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linnet_speech::{
    AudioReader, Delivery, DictationSession, PcmFormat, PcmStream, SessionOptions, SessionText, SileroVad,
    SpeechEngine, SpeechError, SpeechHold, SpeechPriority, Transcript, WorkFailure,
};
use tokio::sync::{Notify, watch};

use crate::error::ApiError;
use crate::prompt::off_the_executor;
use crate::wire::audio_request::SpeechFields;

/// Samples that are pushed under one lock.
const STEP: usize = 16_000;

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LiveState {
    /// Takes audio.
    Open,
    /// Works on what is left.
    Finishing,
    /// All is there.
    Finished,
    /// The recogniser failed; the audio is kept.
    Failed,
}

impl LiveState {
    /// The state's name on the wire.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Finishing => "finishing",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}

/// Everything that can be told of a session.
#[derive(Debug, Clone)]
pub(crate) struct LiveView {
    pub(crate) state: LiveState,
    pub(crate) text: SessionText,
    pub(crate) duration: f64,
    pub(crate) delivery: Delivery,
    pub(crate) has_heard: bool,
    pub(crate) has_speech: bool,
    pub(crate) language: Option<(String, f32)>,
    pub(crate) problem: Option<String>,
}

/// A session that its task works for.
pub(crate) struct LiveSession {
    id: String,
    model: String,
    fields: SpeechFields,
    shared: Arc<Shared>,
    /// One piece of audio at a time, in order.
    turn: tokio::sync::Mutex<Input>,
    _hold: SpeechHold,
}

#[derive(Default)]
struct Input {
    pcm: Option<PcmStream>,
}

struct Shared {
    session: Mutex<DictationSession>,
    /// Audio came, or the end.
    changed: Notify,
    /// Counts what can be seen from outside.
    seen: watch::Sender<u64>,
    /// Nobody wants the text any more.
    is_abandoned: AtomicBool,
}

impl fmt::Debug for LiveSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LiveSession").field("id", &self.id).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Shared {
    // A panic while pushing leaves a session that is behind, not one that lies.
    fn session(&self) -> MutexGuard<'_, DictationSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed.notify_one();
        self.seen.send_modify(|count| *count += 1);
    }
}

impl LiveSession {
    /// Opens a session on an engine and loads its model in the background.
    pub(crate) fn open(
        model: String,
        engine: &SpeechEngine,
        vad: Arc<SileroVad>,
        fields: SpeechFields,
        options: SessionOptions,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared {
            session: Mutex::new(DictationSession::new(vad, options)),
            changed: Notify::new(),
            seen: watch::Sender::new(0),
            is_abandoned: AtomicBool::new(false),
        });
        tokio::spawn(drive(Arc::clone(&shared), engine.clone(), model.clone()));
        let id = format!("audio-session-{}", uuid::Uuid::new_v4().simple());
        Arc::new(Self { id, model, fields, shared, turn: tokio::sync::Mutex::default(), _hold: engine.hold() })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// What it was opened with.
    pub(crate) fn fields(&self) -> &SpeechFields {
        &self.fields
    }

    /// Whether a connection listens to it.
    pub(crate) fn is_watched(&self) -> bool {
        self.shared.seen.receiver_count() > 0
    }

    /// Takes in bare samples.
    pub(crate) async fn push_pcm(&self, format: PcmFormat, bytes: Vec<u8>) -> Result<(), ApiError> {
        let mut input = self.turn.lock().await;
        self.check_open()?;
        let mut stream = match input.pcm.take_if(|stream| stream.format() == format) {
            Some(stream) => stream,
            None => {
                // The resampler of another format still holds the end of its sound.
                self.flush(&mut input).await?;
                PcmStream::new(format).map_err(|error| ApiError::InvalidField {
                    field: "content-type".to_owned(),
                    problem: error.to_string(),
                })?
            }
        };
        let shared = Arc::clone(&self.shared);
        let stream = off_the_executor(move || {
            let mut samples = Vec::new();
            stream.push(&bytes, &mut samples);
            push(&shared, &samples)?;
            Ok(stream)
        })
        .await?;
        input.pcm = Some(stream);
        Ok(())
    }

    /// Takes in a whole file.
    pub(crate) async fn push_file(&self, bytes: Vec<u8>) -> Result<(), ApiError> {
        let mut input = self.turn.lock().await;
        self.check_open()?;
        self.flush(&mut input).await?;
        let shared = Arc::clone(&self.shared);
        off_the_executor(move || {
            let mut reader = AudioReader::from_bytes(bytes, "the audio").map_err(ApiError::audio)?;
            let mut samples = Vec::new();
            while reader.read(&mut samples).map_err(ApiError::audio)? {
                push(&shared, &samples)?;
                samples.clear();
            }
            Ok(())
        })
        .await
    }

    /// Ends the audio.
    pub(crate) async fn end(&self) -> Result<(), ApiError> {
        let mut input = self.turn.lock().await;
        self.check_open()?;
        self.flush(&mut input).await?;
        self.shared.session().finish().map_err(|error| ApiError::vad(&error))?;
        self.shared.tell();
        Ok(())
    }

    /// Tries again what failed.
    pub(crate) fn retry(&self) {
        self.shared.session().retry();
        self.shared.tell();
    }

    /// Waits for the final text.
    pub(crate) async fn wait(&self) -> Result<(String, Transcript), ApiError> {
        let mut seen = self.shared.seen.subscribe();
        loop {
            seen.borrow_and_update();
            {
                let session = self.shared.session();
                if let Some(problem) = session.failure() {
                    return Err(ApiError::speech(&self.model, SpeechError::Failed(problem.to_owned())));
                }
                if session.is_complete() {
                    return Ok((session.text().committed, session.transcript()));
                }
            }
            if seen.changed().await.is_err() {
                return Err(ApiError::ShuttingDown);
            }
        }
    }

    /// Becomes ready whenever something changed.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.shared.seen.subscribe()
    }

    /// How things stand.
    pub(crate) fn view(&self) -> LiveView {
        let session = self.shared.session();
        let state = match (session.failure(), session.is_ended(), session.is_complete()) {
            (Some(_), _, _) => LiveState::Failed,
            (None, _, true) => LiveState::Finished,
            (None, true, false) => LiveState::Finishing,
            (None, false, false) => LiveState::Open,
        };
        LiveView {
            state,
            text: session.text(),
            duration: session.duration(),
            delivery: session.delivery(),
            has_heard: session.has_heard(),
            has_speech: session.has_speech(),
            language: session.language().map(|(language, probability)| (language.to_owned(), probability)),
            problem: session.failure().map(str::to_owned),
        }
    }

    fn check_open(&self) -> Result<(), ApiError> {
        if self.shared.session().is_ended() { Err(ApiError::SessionFinished { id: self.id.clone() }) } else { Ok(()) }
    }

    async fn flush(&self, input: &mut Input) -> Result<(), ApiError> {
        let Some(stream) = input.pcm.take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        off_the_executor(move || {
            let mut samples = Vec::new();
            stream.finish(&mut samples);
            push(&shared, &samples)
        })
        .await
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.shared.is_abandoned.store(true, Ordering::Release);
        self.shared.changed.notify_one();
    }
}

fn push(shared: &Shared, samples: &[f32]) -> Result<(), ApiError> {
    for piece in samples.chunks(STEP) {
        shared.session().push(piece).map_err(|error| ApiError::vad(&error))?;
        shared.tell();
    }
    Ok(())
}

/// Asks the engine for what the session wants, until nobody wants its text any more.
async fn drive(shared: Arc<Shared>, engine: SpeechEngine, model: String) {
    let is_abandoned = || shared.is_abandoned.load(Ordering::Acquire);
    while !is_abandoned() {
        let work = shared.session().next_work();
        let Some(work) = work else {
            shared.changed.notified().await;
            continue;
        };
        let mut recognition = engine.recognize(Arc::clone(work.window.samples()), work.options, SpeechPriority::Live);
        let result = loop {
            if shared.session().is_overtaken() {
                recognition.cancel();
            }
            if is_abandoned() {
                return;
            }
            tokio::select! {
                result = &mut recognition => break result,
                () = shared.changed.notified() => {}
            }
        };
        if let Err(error) = &result
            && *error != SpeechError::Cancelled
        {
            tracing::warn!(model, "speech was not recognised: {error}");
        }
        let result = result.map_err(|error| match error {
            SpeechError::Cancelled => WorkFailure::Cancelled,
            other => WorkFailure::Failed(other.to_string()),
        });
        shared.session().complete(work.id, result);
        shared.seen.send_modify(|count| *count += 1);
    }
}
