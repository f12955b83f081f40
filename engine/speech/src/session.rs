//! A stream of speech to text while it is spoken.
//!
//! [`DictationSession`] decides and computes nothing heavy: it takes samples in, says what is to be recognised next
//! ([`DictationSession::next_work`]), and takes the results. It knows no clock, no thread and no model, so that a live
//! microphone, an upload and a file of hours go through the same decisions.
//!
//! Audio becomes windows as [`WindowStream`] has it. A window is recognised when it is closed; while speech goes on, also
//! before that: at every pause, in case that nothing more is said (then nothing is left to do at the end), and, where partial
//! text is wanted, now and then. Every window is told the text of the one before, so windows are recognised in order, one at a
//! time. What was committed ([`SessionText::committed`]) never changes.

mod partial;
mod text;

use std::{collections::VecDeque, sync::Arc};

use crate::{
    Delivery, DeliveryWatch, SAMPLE_RATE, SileroVad, TextStage, TranscribeOptions, Transcript, VadError,
    windows::{SpeechWindow, WindowOptions, WindowStream},
};

pub use text::SessionText;

use partial::PartialText;
use text::{in_stream_time, joined};

/// New audio from which on a partial text is worth recognising again, in ms.
const PARTIAL_STEP_MS: usize = 700;
/// The least audio that a partial text is made of, in ms: less is guessed at.
const PARTIAL_LEAST_MS: usize = 900;
/// A text found at a higher temperature than this is not told to the next window (openai/whisper, transcribe.py).
const LARGEST_CONTEXT_TEMPERATURE: f32 = 0.5;
/// Characters of the text before that a window is told at most. It is cut to Whisper's 223 tokens later; this is more.
const LONGEST_CONTEXT: usize = 1000;

/// How a session works.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Which audio is recognised together.
    pub windows: WindowOptions,
    /// How it is recognised.
    pub transcribe: TranscribeOptions,
    /// What is made of the recognised text.
    pub text: Arc<TextStage>,
    /// Whether text is wanted while it is spoken. It costs about a recognition a second.
    pub partials: bool,
    /// Whether windows are recognised ahead at pauses, so that little is left to do at the end. For live speech.
    pub ahead: bool,
}

/// Why something is to be recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// The window is closed: its text is final.
    Final,
    /// The speaker pauses: the text is final if nothing more is said.
    Settled,
    /// The speaker goes on: the text is for show.
    Partial,
}

/// What is to be recognised next.
#[derive(Debug, Clone)]
pub struct SessionWork {
    /// Names it when its result comes.
    pub id: u64,
    /// Why.
    pub kind: WorkKind,
    /// The audio.
    pub window: SpeechWindow,
    /// How.
    pub options: TranscribeOptions,
}

/// Why there is no text of some work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkFailure {
    /// It was called off; it may be asked for again.
    Cancelled,
    /// The recogniser failed. The audio is kept for [`DictationSession::retry`].
    Failed(String),
}

/// A window whose text is final.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedWindow {
    /// Its first sample in the stream.
    pub start: u64,
    /// The sample after its last.
    pub end: u64,
    /// As it was recognised; times are those of the stream.
    pub transcript: Transcript,
    /// What the text stage made of it.
    pub text: String,
}

/// A session: audio in, work out, results in, text out.
#[derive(Debug)]
pub struct DictationSession {
    options: SessionOptions,
    stream: WindowStream,
    delivery: DeliveryWatch,
    samples: u64,
    /// Closed windows that have no text yet, in order.
    closed: VecDeque<SpeechWindow>,
    finished: Vec<FinishedWindow>,
    /// Windows that were finished and given away by [`DictationSession::take_finished`].
    taken: usize,
    /// The text of all finished windows.
    text: String,
    language: Option<(String, f32)>,
    /// What the next window is told.
    context: String,
    partial: PartialText,
    out: Option<SessionWork>,
    works: u64,
    /// The latest recognition of the open window that could become final.
    ahead: Option<(SpeechWindow, Transcript)>,
    /// Samples of the open window when it was last recognised.
    heard: usize,
    failure: Option<String>,
    ended: bool,
    revision: u64,
}

impl DictationSession {
    /// A session at its beginning.
    #[must_use]
    pub fn new(vad: Arc<SileroVad>, mut options: SessionOptions) -> Self {
        if options.partials {
            // Words are shown before it is known which window they end up in; every utterance must fit the open one.
            let windows = &mut options.windows;
            windows.enough_ms = windows.enough_ms.min(windows.longest_ms / 2);
            let room = (windows.longest_ms - windows.enough_ms) as u64;
            windows.segmenter.max_segment_ms = windows.segmenter.max_segment_ms.min(room);
        }
        Self {
            stream: WindowStream::new(vad, options.windows),
            options,
            delivery: DeliveryWatch::default(),
            samples: 0,
            closed: VecDeque::new(),
            finished: Vec::new(),
            taken: 0,
            text: String::new(),
            language: None,
            context: String::new(),
            partial: PartialText::default(),
            out: None,
            works: 0,
            ahead: None,
            heard: 0,
            failure: None,
            ended: false,
            revision: 0,
        }
    }

    /// Takes in any number of samples (mono, 16 kHz). After [`DictationSession::finish`] they are ignored.
    ///
    /// # Errors
    /// [`VadError`] when memory is short.
    pub fn push(&mut self, samples: &[f32]) -> Result<Delivery, VadError> {
        if !self.ended {
            self.samples += samples.len() as u64;
            self.delivery.push(samples);
            let mut closed = Vec::new();
            self.stream.push(samples, &mut closed)?;
            self.close(closed);
        }
        Ok(self.delivery.state())
    }

    /// Ends the audio. What is left to recognise comes out of [`DictationSession::next_work`] as ever.
    ///
    /// # Errors
    /// As [`DictationSession::push`].
    pub fn finish(&mut self) -> Result<(), VadError> {
        if !self.ended {
            self.ended = true;
            let mut closed = Vec::new();
            self.stream.finish(&mut closed)?;
            self.close(closed);
        }
        Ok(())
    }

    /// What is to be recognised next, if anything is; not before the result of the last work was given back.
    pub fn next_work(&mut self) -> Option<SessionWork> {
        if self.out.is_some() || self.failure.is_some() {
            return None;
        }
        let (kind, window) = match self.closed.front() {
            Some(window) => (WorkKind::Final, window.clone()),
            None if self.ended || !self.options.ahead => return None,
            None => self.early_work()?,
        };
        self.works += 1;
        let work = SessionWork { id: self.works, kind, window, options: self.window_options(kind) };
        self.out = Some(work.clone());
        Some(work)
    }

    /// Whether the work that is out should be called off because its result would be of no use, or something more urgent
    /// waits for it.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        let Some(out) = &self.out else { return false };
        match out.kind {
            WorkKind::Final => false,
            // What was recognised ahead is the window itself if nothing more was said.
            WorkKind::Settled => self.closed.front().is_some_and(|window| !window.is_same(&out.window)),
            WorkKind::Partial => !self.closed.is_empty() || self.ended,
        }
    }

    /// Takes the result of a work. Results that nobody waits for any more are ignored.
    pub fn complete(&mut self, id: u64, result: Result<Transcript, WorkFailure>) {
        let Some(work) = self.out.take_if(|work| work.id == id) else { return };
        match result {
            Err(WorkFailure::Cancelled) => {}
            Err(WorkFailure::Failed(problem)) => {
                // What is for show may fail; the audio is all there.
                self.revision += 1;
                self.failure = Some(problem);
            }
            Ok(transcript) => match (work.kind, self.closed.front()) {
                (WorkKind::Final | WorkKind::Settled, Some(front)) if front.is_same(&work.window) => {
                    self.finalize(&transcript);
                }
                (WorkKind::Final, _) => {}
                (kind, _) => {
                    self.heard = work.window.samples().len();
                    self.show(&transcript);
                    if kind == WorkKind::Settled {
                        self.ahead = Some((work.window, transcript));
                    }
                }
            },
        }
    }

    /// What went wrong, if the recogniser failed. Audio is taken in all the same.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Tries again what failed.
    pub fn retry(&mut self) {
        self.failure = None;
    }

    /// Whether all audio has its final text.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.ended && self.closed.is_empty()
    }

    /// Whether the audio was ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The text so far.
    #[must_use]
    pub fn text(&self) -> SessionText {
        let language = self.language.as_ref().map_or("", |(language, _)| language.as_str());
        SessionText::new(&self.text, &self.partial, language, self.is_complete())
    }

    /// Changes whenever [`DictationSession::text`] or [`DictationSession::failure`] do.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What the microphone does.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.delivery.state()
    }

    /// Whether anything but zeros has ever come.
    #[must_use]
    pub fn has_heard(&self) -> bool {
        self.delivery.has_heard()
    }

    /// Whether any speech was found.
    #[must_use]
    pub fn has_speech(&self) -> bool {
        self.taken + self.finished.len() + self.closed.len() > 0 || self.stream.open().is_some()
    }

    /// Seconds of audio taken in.
    #[must_use]
    pub fn duration(&self) -> f64 {
        self.samples as f64 / SAMPLE_RATE as f64
    }

    /// Closed windows that wait for their text.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.closed.len()
    }

    /// The language and how probable it is, once it is decided.
    #[must_use]
    pub fn language(&self) -> Option<(&str, f32)> {
        self.language.as_ref().map(|(language, probability)| (language.as_str(), *probability))
    }

    /// The finished windows that were not taken yet.
    #[must_use]
    pub fn finished(&self) -> &[FinishedWindow] {
        &self.finished
    }

    /// Takes the finished windows, so that a recording of hours takes flat memory.
    pub fn take_finished(&mut self) -> Vec<FinishedWindow> {
        self.taken += self.finished.len();
        std::mem::take(&mut self.finished)
    }

    /// The transcript of all windows that were not taken.
    #[must_use]
    pub fn transcript(&self) -> Transcript {
        let (language, language_probability) = self.language.clone().unwrap_or_default();
        let segments = self.finished.iter().flat_map(|window| window.transcript.segments.iter().cloned()).collect();
        Transcript { language, language_probability, duration: self.duration(), segments }
    }

    fn close(&mut self, closed: Vec<SpeechWindow>) {
        for window in closed {
            self.closed.push_back(window);
            self.settle();
        }
    }

    /// Takes what was recognised ahead for the window that is to be finished next, if it is the same audio.
    fn settle(&mut self) {
        let Some(front) = self.closed.front() else { return };
        if let Some((_, transcript)) = self.ahead.take_if(|(window, _)| window.is_same(front)) {
            self.finalize(&transcript);
        }
    }

    fn early_work(&self) -> Option<(WorkKind, SpeechWindow)> {
        let open = self.stream.open()?;
        if open.is_settled {
            let is_known = self.ahead.as_ref().is_some_and(|(window, _)| window.is_same(&open.window));
            return (!is_known).then_some((WorkKind::Settled, open.window));
        }
        let samples = open.window.samples().len();
        let per_ms = SAMPLE_RATE / 1000;
        let is_due = samples >= self.heard + PARTIAL_STEP_MS * per_ms && samples >= PARTIAL_LEAST_MS * per_ms;
        (self.options.partials && is_due).then_some((WorkKind::Partial, open.window))
    }

    fn window_options(&self, kind: WorkKind) -> TranscribeOptions {
        let mut options = self.options.transcribe.clone();
        if let Some((language, _)) = &self.language {
            options.languages = vec![language.clone()];
        }
        if kind == WorkKind::Partial {
            // For show, and soon overtaken: one quick attempt.
            options.temperatures.truncate(1);
            options.beam_size = 1;
            options.word_timestamps = false;
        }
        if options.condition_on_previous_text && !self.context.is_empty() {
            let prompt = options.initial_prompt.take().unwrap_or_default();
            options.initial_prompt = Some(format!("{prompt} {}", self.context).trim().to_owned());
        }
        options
    }

    /// Makes a transcript the final text of the first closed window.
    fn finalize(&mut self, transcript: &Transcript) {
        let Some(window) = self.closed.pop_front() else { return };
        let transcript = in_stream_time(&window, transcript, self.segments());
        let processed = self.options.text.apply(&transcript.text(), &transcript.language);
        let text = self.partial.finish(&processed, window.is_split());
        self.text = joined(&self.text, &text, &transcript.language);
        self.remember(&transcript);
        self.finished.push(FinishedWindow { start: window.start(), end: window.end(), transcript, text });
        self.ahead = None;
        self.heard = 0;
        self.revision += 1;
    }

    /// The language is that of the first window with words; the next window is told the text of this one.
    fn remember(&mut self, transcript: &Transcript) {
        let text = transcript.text();
        if text.is_empty() {
            return;
        }
        if self.language.is_none() && !transcript.language.is_empty() {
            self.language = Some((transcript.language.clone(), transcript.language_probability));
        }
        let is_sure = transcript.segments.iter().all(|segment| segment.temperature <= LARGEST_CONTEXT_TEMPERATURE);
        self.context.clear();
        if is_sure {
            let from = text.char_indices().rev().nth(LONGEST_CONTEXT - 1).map_or(0, |(index, _)| index);
            self.context.push_str(&text[from..]);
        }
    }

    fn show(&mut self, transcript: &Transcript) {
        if self.options.partials {
            let processed = self.options.text.apply(&transcript.text(), &transcript.language);
            self.partial.update(&processed);
            self.revision += 1;
        }
    }

    /// Segments of the finished windows that are here.
    fn segments(&self) -> usize {
        self.finished.iter().map(|window| window.transcript.segments.len()).sum()
    }
}

#[cfg(test)]
mod tests;
