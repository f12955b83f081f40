//! One recording to text.

use std::sync::Arc;
use std::time::Instant;

use linnet_speech::{
    AudioReader, DictationSession, FinishedWindow, SAMPLE_RATE, SessionOptions, SpeechEngine, SpeechHold,
    SpeechPriority, TextOptions, TextStage, TranscribeOptions, Transcript, WindowOptions, WorkFailure,
};

use super::SpeechManager;
use crate::error::ApiError;
use crate::prompt::off_the_executor;

/// Seconds of audio that are decoded before somebody else gets the thread.
const STEP_SECONDS: usize = 30;

/// The least audio that is taken for a recording, in samples: 0.1 s.
const LEAST_SAMPLES: usize = SAMPLE_RATE / 10;

/// A recording on its way to text. Dropped, its work is called off.
pub(crate) struct FileTranscription {
    model: String,
    engine: SpeechEngine,
    hold: Option<SpeechHold>,
    /// Away while it works on another thread.
    work: Option<Box<FileWork>>,
    started: Instant,
}

struct FileWork {
    reader: AudioReader,
    samples: Vec<f32>,
    route: Route,
}

enum Route {
    /// Window by window where somebody speaks.
    Windows(Box<DictationSession>),
    /// All of it, speech or not.
    Whole { options: Box<TranscribeOptions>, is_done: bool },
}

impl FileTranscription {
    /// Begins with a recording; `name` stands for it in errors.
    pub(crate) async fn begin(
        speech: &Arc<SpeechManager>,
        model: Option<&str>,
        audio: Vec<u8>,
        name: String,
        options: TranscribeOptions,
        vad: bool,
    ) -> Result<Self, ApiError> {
        let (model, engine) = speech.engine(model).await?;
        let detector = speech.vad();
        let work = off_the_executor(move || {
            let reader = AudioReader::from_bytes(audio, &name).map_err(ApiError::audio)?;
            let route = if vad {
                let text = TextStage::new(&TextOptions::default()).map_err(|error| ApiError::InvalidField {
                    field: "vocabulary".to_owned(),
                    problem: error.to_string(),
                })?;
                let options = SessionOptions {
                    windows: WindowOptions::FILE,
                    transcribe: options,
                    text: Arc::new(text),
                    partials: false,
                    ahead: false,
                };
                Route::Windows(Box::new(DictationSession::new(detector, options)))
            } else {
                Route::Whole { options: Box::new(options), is_done: false }
            };
            Ok(Box::new(FileWork { reader, samples: Vec::new(), route }))
        })
        .await?;
        Ok(Self { model, engine, hold: None, work: Some(work), started: Instant::now() })
    }

    /// The next window with its text; `None` when all is done.
    pub(crate) async fn next(&mut self) -> Result<Option<FinishedWindow>, ApiError> {
        loop {
            let Some(mut work) = self.work.take() else { return Ok(None) };
            match &mut work.route {
                Route::Windows(session) => {
                    let Some(next) = session.next_work() else {
                        if session.is_complete() {
                            self.finished(session.duration());
                            self.work = Some(work);
                            return Ok(None);
                        }
                        self.work = Some(off_the_executor(move || work.read_on()).await?);
                        continue;
                    };
                    let result = self.recognize(Arc::clone(next.window.samples()), next.options).await;
                    let failed = result.as_ref().err().cloned();
                    session.complete(next.id, result.map_err(|error| WorkFailure::Failed(error.to_string())));
                    let window = session.finished().last().cloned();
                    self.work = Some(work);
                    return match failed {
                        Some(error) => Err(error),
                        None => Ok(window),
                    };
                }
                Route::Whole { is_done: true, .. } => {
                    self.finished(work.samples.len() as f64 / SAMPLE_RATE as f64);
                    self.work = Some(work);
                    return Ok(None);
                }
                Route::Whole { .. } => {
                    work = off_the_executor(move || work.read_all()).await?;
                    let Route::Whole { options, is_done } = &mut work.route else { return Ok(None) };
                    *is_done = true;
                    let samples = Arc::new(std::mem::take(&mut work.samples));
                    let transcript = self.recognize(Arc::clone(&samples), (**options).clone()).await?;
                    let end = samples.len() as u64;
                    work.samples = Arc::into_inner(samples).unwrap_or_default();
                    self.work = Some(work);
                    let text = transcript.text();
                    return Ok(Some(FinishedWindow { start: 0, end, transcript, text }));
                }
            }
        }
    }

    /// The whole text and transcript, when all windows are there.
    pub(crate) fn result(&self, windows: &[FinishedWindow]) -> (String, Transcript) {
        match self.work.as_ref().map(|work| &work.route) {
            Some(Route::Windows(session)) => (session.text().committed, session.transcript()),
            _ => {
                let transcript = windows.first().map(|window| window.transcript.clone()).unwrap_or_default();
                (transcript.text(), transcript)
            }
        }
    }

    /// The model at work.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The text so far.
    pub(crate) fn text_so_far(&self, windows: &[FinishedWindow]) -> String {
        match self.work.as_ref().map(|work| &work.route) {
            Some(Route::Windows(session)) => session.text().committed,
            _ => windows.first().map(|window| window.text.clone()).unwrap_or_default(),
        }
    }

    async fn recognize(&mut self, samples: Arc<Vec<f32>>, options: TranscribeOptions) -> Result<Transcript, ApiError> {
        // Not before somebody speaks: silence loads nothing.
        if self.hold.is_none() {
            self.hold = Some(self.engine.hold());
        }
        let text = self.engine.recognize(samples, options, SpeechPriority::File).await;
        text.map_err(|error| ApiError::speech(&self.model, error))
    }

    fn finished(&mut self, duration: f64) {
        self.hold = None;
        let seconds = (self.started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        tracing::info!(model = self.model, audio_seconds = duration, seconds, "recording transcribed");
    }
}

impl FileWork {
    /// Reads on until a window is closed or enough was read.
    fn read_on(mut self: Box<Self>) -> Result<Box<Self>, ApiError> {
        let Route::Windows(session) = &mut self.route else { return Ok(self) };
        for _ in 0..STEP_SECONDS {
            self.samples.clear();
            while self.samples.len() < SAMPLE_RATE {
                if !self.reader.read(&mut self.samples).map_err(ApiError::audio)? {
                    session.push(&self.samples).map_err(|error| ApiError::vad(&error))?;
                    if session.duration() < LEAST_SAMPLES as f64 / SAMPLE_RATE as f64 {
                        return Err(too_short(session.duration()));
                    }
                    session.finish().map_err(|error| ApiError::vad(&error))?;
                    return Ok(self);
                }
            }
            session.push(&self.samples).map_err(|error| ApiError::vad(&error))?;
            if session.waiting() > 0 {
                break;
            }
        }
        Ok(self)
    }

    fn read_all(mut self: Box<Self>) -> Result<Box<Self>, ApiError> {
        self.samples = self.reader.read_to_end().map_err(ApiError::audio)?;
        if self.samples.len() < LEAST_SAMPLES {
            return Err(too_short(self.samples.len() as f64 / SAMPLE_RATE as f64));
        }
        Ok(self)
    }
}

fn too_short(seconds: f64) -> ApiError {
    ApiError::InvalidField {
        field: "file".to_owned(),
        problem: format!("holds {seconds:.3} s of audio; at least 0.1 s are needed"),
    }
}
