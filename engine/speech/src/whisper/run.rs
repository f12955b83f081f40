//! A transcription under way.

use super::{
    TranscribeOptions,
    filter::LogitFilter,
    language::Language,
    prompt::InitialPrompt,
    transcript::{Transcript, TranscriptSegment},
};
use crate::{HOP_LENGTH, MelStream, SAMPLE_RATE};

/// Where a transcription can go on later, in another process too.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResumePoint {
    /// The first mel frame (of 10 ms) that was not transcribed: samples go on there.
    pub frame: usize,
    /// Segments there are so far.
    pub segments: usize,
    /// Tokens of the text before.
    pub context: Vec<u32>,
    /// The language and how probable it is, once it is known.
    pub language: Option<(Language, f32)>,
}

/// A transcription under way: audio that was pushed, and where its text has got to. [`super::Transcriber::begin`] makes one.
#[derive(Debug)]
pub struct TranscriptionRun {
    pub(crate) options: TranscribeOptions,
    pub(crate) filter: LogitFilter,
    pub(crate) mel: MelStream,
    pub(crate) samples: usize,
    /// The frame of the whole audio at which `mel` begins.
    pub(crate) origin: usize,
    /// The next window's first frame, from `origin`.
    pub(crate) seek: usize,
    /// Languages it may be; empty: any.
    pub(crate) languages: Vec<Language>,
    pub(crate) language: Option<(Language, f32)>,
    /// What every window is told.
    pub(crate) initial_prompt: InitialPrompt,
    /// The text so far as far as the next window is told it.
    pub(crate) context: Vec<u32>,
    /// When the last word ended, where words are timed.
    pub(crate) last_speech: f64,
    pub(crate) segments_before: usize,
    pub(crate) segments: Vec<TranscriptSegment>,
}

impl TranscriptionRun {
    /// Where it could be taken up again.
    #[must_use]
    pub fn resume_point(&self) -> ResumePoint {
        ResumePoint {
            frame: self.origin + self.seek,
            segments: self.segments_before + self.segments.len(),
            context: self.context.clone(),
            language: self.language,
        }
    }

    /// Seconds of audio that were transcribed.
    #[must_use]
    pub fn transcribed(&self) -> f64 {
        seconds(self.origin + self.seek)
    }

    /// What every window is told of prompt and vocabulary, and what of them did not fit.
    #[must_use]
    pub fn initial_prompt(&self) -> &InitialPrompt {
        &self.initial_prompt
    }

    /// What was found so far.
    #[must_use]
    pub fn segments(&self) -> &[TranscriptSegment] {
        &self.segments
    }

    /// Forgets the segments so far, which whoever runs it has; long audio takes flat memory then.
    pub fn take_segments(&mut self) -> Vec<TranscriptSegment> {
        self.segments_before += self.segments.len();
        std::mem::take(&mut self.segments)
    }

    /// The transcript so far.
    #[must_use]
    pub fn into_transcript(self) -> Transcript {
        let (language, language_probability) = self
            .language
            .map_or_else(Default::default, |(language, probability)| (language.code.to_owned(), probability));
        let duration = (self.origin * HOP_LENGTH + self.samples) as f64 / SAMPLE_RATE as f64;
        Transcript { language, language_probability, duration, segments: self.segments }
    }
}

/// When a mel frame begins.
pub(crate) fn seconds(frame: usize) -> f64 {
    (frame * HOP_LENGTH) as f64 / SAMPLE_RATE as f64
}
