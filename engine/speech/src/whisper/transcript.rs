//! What a transcription gives, under OpenAI's names.

/// A word and when it was spoken.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptWord {
    /// The word with the space before it, if the language writes one, and its punctuation.
    pub word: String,
    /// When it begins, in seconds from the beginning of the audio.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// Mean probability of its tokens.
    pub probability: f32,
}

/// A piece of a transcript between two timestamps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TranscriptSegment {
    /// Its place in the transcript, from 0.
    pub id: usize,
    /// The first mel frame of the window it was heard in.
    pub seek: usize,
    /// When it begins, in seconds from the beginning of the audio.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// Its text, as the tokenizer gives it: most languages begin with a space.
    pub text: String,
    /// Its tokens, timestamps included.
    pub tokens: Vec<u32>,
    /// The temperature that gave the text.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub avg_logprob: f32,
    /// How often the window's text fits into itself compressed.
    pub compression_ratio: f32,
    /// How probable it is that nobody speaks in the window.
    pub no_speech_prob: f32,
    /// Its words, where they were asked for.
    pub words: Vec<TranscriptWord>,
}

/// The text of some audio.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Transcript {
    /// The language's code, such as `en`.
    pub language: String,
    /// How probable the language is; 1 where it was given.
    pub language_probability: f32,
    /// Seconds of audio.
    pub duration: f64,
    /// The segments, in order.
    pub segments: Vec<TranscriptSegment>,
}

impl Transcript {
    /// The whole text, without spaces around it.
    #[must_use]
    pub fn text(&self) -> String {
        self.segments.iter().map(|segment| segment.text.as_str()).collect::<String>().trim().to_owned()
    }
}
