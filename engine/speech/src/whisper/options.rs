//! How to transcribe.

/// What is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Task {
    /// What was said, in its language.
    #[default]
    Transcribe,
    /// What was said, in English.
    Translate,
}

/// How to transcribe. The defaults are those of OpenAI's `transcribe()`.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscribeOptions {
    /// Transcribe, or translate to English: only when asked for.
    pub task: Task,
    /// Codes of the languages it may be. One: it is that one. None: any that the model knows. Several: the likeliest of
    /// these.
    pub languages: Vec<String>,
    /// Hypotheses that go on side by side at temperature 0; 1 is greedy.
    pub beam_size: usize,
    /// Beam search ends with `round(beam_size * patience)` finished hypotheses.
    pub patience: f32,
    /// Texts drawn side by side above temperature 0, of which the likeliest is taken.
    pub best_of: usize,
    /// Finished hypotheses are ranked by log-probability over `((5 + length) / 6)^penalty`; `None`: over the length.
    pub length_penalty: Option<f32>,
    /// Temperatures to try in turn while the result looks wrong.
    pub temperatures: Vec<f32>,
    /// A window whose text compresses better than this repeats itself: the next temperature is tried.
    pub compression_ratio_threshold: Option<f32>,
    /// A window with a lower mean log-probability is doubtful: the next temperature is tried.
    pub logprob_threshold: Option<f32>,
    /// A doubtful window in which silence is more probable than this is silent.
    pub no_speech_threshold: Option<f32>,
    /// Whether a window is told the text before it.
    pub condition_on_previous_text: bool,
    /// Text that comes before the first window.
    pub initial_prompt: Option<String>,
    /// Words that are likely: whole terms go into the prompt while they fit.
    pub vocabulary: Vec<String>,
    /// Text without timestamps: one segment a window.
    pub without_timestamps: bool,
    /// Whether words get times.
    pub word_timestamps: bool,
    /// Segments with improbable words and this many seconds of silence around them are dropped; needs word times.
    pub hallucination_silence_threshold: Option<f32>,
    /// The latest time, in seconds, at which the first words of a window may begin.
    pub max_initial_timestamp: f32,
    /// Token ids that never appear; `None`: those that write no speech, as OpenAI's list.
    pub suppress_tokens: Option<Vec<u32>>,
}

impl Default for TranscribeOptions {
    fn default() -> Self {
        Self {
            task: Task::Transcribe,
            languages: Vec::new(),
            beam_size: 1,
            patience: 1.0,
            best_of: 5,
            length_penalty: None,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous_text: true,
            initial_prompt: None,
            vocabulary: Vec::new(),
            without_timestamps: false,
            word_timestamps: false,
            hallucination_silence_threshold: None,
            max_initial_timestamp: 1.0,
            suppress_tokens: None,
        }
    }
}
