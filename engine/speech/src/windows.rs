//! Which audio is recognised together: the window rule.
//!
//! A window is one or more utterances in a row, laid end to end; the silence between them is left out, and times are put
//! right afterwards. An utterance joins the window before it unless
//!
//! - that window is long enough already ([`WindowOptions::enough_ms`]),
//! - together they would be longer than [`WindowOptions::longest_ms`], or
//! - more than [`WindowOptions::pause_ms`] were left out between them.
//!
//! The rule sees only audio: no clock, and not how the audio was cut on its way. A recording pushed live in pieces makes the
//! same windows as the same recording from a file under the same options.

use std::sync::Arc;

use crate::{
    SAMPLE_RATE,
    segment::SegmenterOptions,
    utterances::{Utterance, UtteranceStream},
    vad::{SileroVad, VadError},
};

/// Samples per millisecond.
const PER_MS: usize = SAMPLE_RATE / 1000;

/// When a window is closed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowOptions {
    /// How utterances are found.
    pub segmenter: SegmenterOptions,
    /// From this length on a window takes no further utterance, in ms.
    pub enough_ms: usize,
    /// No window is longer, in ms. Whisper hears 30 s at once.
    pub longest_ms: usize,
    /// Utterances with more silence than this left out between them are never in one window, in ms.
    pub pause_ms: usize,
}

impl WindowOptions {
    /// For files: few full windows, as each costs the encoder the same however short it is.
    pub const FILE: Self =
        Self { segmenter: SegmenterOptions::DEFAULT, enough_ms: 28_000, longest_ms: 28_000, pause_ms: 2000 };

    /// For live speech: windows end early, so that little is left to do at the end; short utterances are still told
    /// together, as a lone word is easily misheard.
    pub const LIVE: Self = Self { enough_ms: 8000, ..Self::FILE };
}

impl Default for WindowOptions {
    fn default() -> Self {
        Self::FILE
    }
}

/// What a window is made of.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    /// Where it begins in the stream, in samples.
    start: u64,
    samples: usize,
}

/// Audio that is recognised in one go.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechWindow {
    parts: Vec<Part>,
    samples: Arc<Vec<f32>>,
    is_split: bool,
}

impl SpeechWindow {
    fn of(utterances: &[Utterance]) -> Self {
        let part = |utterance: &Utterance| Part { start: utterance.segment.start, samples: utterance.samples.len() };
        let samples = utterances.iter().flat_map(|utterance| &utterance.samples).copied().collect();
        let is_split = utterances.last().is_some_and(|utterance| utterance.segment.split);
        Self { parts: utterances.iter().map(part).collect(), samples: Arc::new(samples), is_split }
    }

    /// Whether speech goes on without a pause in the next window.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.is_split
    }

    /// Its samples: mono, 16 kHz.
    #[must_use]
    pub fn samples(&self) -> &Arc<Vec<f32>> {
        &self.samples
    }

    /// Its first sample's place in the stream.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.start)
    }

    /// The place in the stream after its last sample.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.start + part.samples as u64)
    }

    /// Whether two windows of one stream are the same audio.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.parts == other.parts
    }

    /// When something happened in the stream that happened `seconds` after the window's beginning, in seconds. What lies on
    /// the seam of two utterances belongs to the earlier one if it is an end, to the later one if it is a beginning.
    #[must_use]
    pub fn time_in_stream(&self, seconds: f64, is_end: bool) -> f64 {
        let rate = SAMPLE_RATE as f64;
        let mut left = seconds.max(0.0) * rate;
        for (index, part) in self.parts.iter().enumerate() {
            let length = part.samples as f64;
            let is_last = index + 1 == self.parts.len();
            if is_last || left < length || (is_end && left <= length) {
                // Whisper may put a time after the end of the audio.
                return (part.start as f64 + left.min(length)) / rate;
            }
            left -= length;
        }
        seconds
    }
}

/// What is being spoken, as a window that may still grow.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenWindow {
    /// The audio so far.
    pub window: SpeechWindow,
    /// Whether the speaker pauses: the window stays as it is if nothing more is said.
    pub is_settled: bool,
}

/// Cuts a stream of samples into windows.
#[derive(Debug)]
pub struct WindowStream {
    utterances: UtteranceStream,
    options: WindowOptions,
    /// Utterances of the window that is not closed yet.
    open: Vec<Utterance>,
    found: Vec<Utterance>,
}

impl WindowStream {
    /// A stream at its beginning.
    #[must_use]
    pub fn new(vad: Arc<SileroVad>, options: WindowOptions) -> Self {
        let segmenter = SegmenterOptions {
            max_segment_ms: options.segmenter.max_segment_ms.min(options.longest_ms as u64),
            ..options.segmenter
        };
        Self { utterances: UtteranceStream::new(vad, segmenter), options, open: Vec::new(), found: Vec::new() }
    }

    /// Takes in any number of samples (mono, 16 kHz) and appends the windows that they close.
    ///
    /// # Errors
    /// [`VadError`] when memory is short.
    pub fn push(&mut self, samples: &[f32], closed: &mut Vec<SpeechWindow>) -> Result<(), VadError> {
        // In small steps, so that a pause closes a window at the same sample however much is pushed at once.
        for piece in samples.chunks(SAMPLE_RATE / 10) {
            self.utterances.push(piece, &mut self.found)?;
            self.sort(closed);
        }
        Ok(())
    }

    /// Ends the stream and appends what was left of it. The stream is new afterwards.
    ///
    /// # Errors
    /// As [`WindowStream::push`].
    pub fn finish(&mut self, closed: &mut Vec<SpeechWindow>) -> Result<(), VadError> {
        self.utterances.finish(&mut self.found)?;
        self.sort(closed);
        self.close(closed);
        Ok(())
    }

    /// What is being spoken, with what was said before it in the same window; without a word since the last closed window,
    /// nothing. While somebody speaks on who is too long for the window, it is the window without him.
    #[must_use]
    pub fn open(&self) -> Option<OpenWindow> {
        match self.utterances.speaking_trimmed() {
            Some((speaking, is_settled)) if self.joins(&speaking) => {
                let mut utterances = self.open.clone();
                utterances.push(speaking);
                Some(OpenWindow { window: SpeechWindow::of(&utterances), is_settled })
            }
            _ if self.open.is_empty() => None,
            _ => Some(OpenWindow { window: SpeechWindow::of(&self.open), is_settled: true }),
        }
    }

    fn sort(&mut self, closed: &mut Vec<SpeechWindow>) {
        for utterance in std::mem::take(&mut self.found) {
            if !self.joins(&utterance) {
                self.close(closed);
            }
            self.open.push(utterance);
            if self.open_samples() >= self.options.enough_ms * PER_MS {
                self.close(closed);
            }
        }
        // What cannot be joined any more need not wait for the next word.
        let silent_since = self.open.last().map_or(u64::MAX, |last| last.segment.end);
        if self.utterances.next_start() > silent_since.saturating_add((self.options.pause_ms * PER_MS) as u64) {
            self.close(closed);
        }
    }

    fn joins(&self, utterance: &Utterance) -> bool {
        let Some(last) = self.open.last() else { return true };
        let pause = utterance.segment.start.saturating_sub(last.segment.end);
        self.open_samples() + utterance.samples.len() <= self.options.longest_ms * PER_MS
            && pause <= (self.options.pause_ms * PER_MS) as u64
    }

    fn open_samples(&self) -> usize {
        self.open.iter().map(|utterance| utterance.samples.len()).sum()
    }

    fn close(&mut self, closed: &mut Vec<SpeechWindow>) {
        if !self.open.is_empty() {
            closed.push(SpeechWindow::of(&std::mem::take(&mut self.open)));
        }
    }
}

#[cfg(test)]
mod tests;
