//! What decoding asks of a Whisper network, whatever computes it.

use std::ops::Range;

use linnet_compute::ComputeError;
use linnet_models::ModelError;

/// A network's sizes, under the names of OpenAI's `ModelDimensions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WhisperDimensions {
    /// Mel bins of a frame: 80 or 128.
    pub n_mels: usize,
    /// Positions that the encoder gives for a window, half as many as it has frames: 1,500.
    pub n_audio_ctx: usize,
    /// The most tokens in a sequence: 448.
    pub n_text_ctx: usize,
    /// Entries of a line of logits.
    pub n_vocab: usize,
    /// Decoder layers.
    pub n_text_layer: usize,
    /// Attention heads of a decoder layer.
    pub n_text_head: usize,
    /// Heads of the decoder's cross attention that follow the audio in time, as (layer, head). Models that name none use
    /// all heads of the upper half of the layers.
    pub alignment_heads: Vec<(usize, usize)>,
}

/// A window of audio that was encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window(pub u64);

/// A sequence of tokens that listens to one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sequence(pub u64);

/// The next tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRow<'a> {
    /// The sequence, named once in a step.
    pub sequence: Sequence,
    /// What follows what it holds; at least one token.
    pub tokens: &'a [u32],
    /// For which of these tokens logits are wanted.
    pub outputs: Range<usize>,
}

/// Where the tokens of a text lie in the audio.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alignment {
    /// Scores of cross attention before softmax: `[alignment heads, tokens, n_audio_ctx]`.
    pub scores: Vec<f32>,
    /// Logits of every token: `[tokens, n_vocab]`.
    pub logits: Vec<f32>,
}

/// Why a network gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The backend failed.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A window of another size.
    #[error("a window has {expected} log-mel values, not {found}")]
    WindowSize {
        /// `2 * n_audio_ctx * n_mels`.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// A window or sequence that is not open.
    #[error("{what} is not open")]
    NotOpen {
        /// Which.
        what: &'static str,
    },
    /// A sequence would become longer than the network was made for.
    #[error("{tokens} tokens do not fit: the network takes {limit}")]
    TooLong {
        /// How many it would be.
        tokens: usize,
        /// `n_text_ctx`.
        limit: usize,
    },
    /// A row of a step without tokens, with a sequence that an earlier row names, or with outputs beyond its tokens.
    #[error("row {row} of a step: {reason}")]
    BadRow {
        /// Which.
        row: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A network on a backend. It belongs to the thread that loaded it.
pub trait WhisperNetwork {
    /// Its sizes.
    fn dimensions(&self) -> &WhisperDimensions;

    /// Encodes a window: `2 * n_audio_ctx` frames of `n_mels` values, frame by frame, as [`crate::MelFrontEnd`] gives them.
    ///
    /// # Errors
    /// When the size is another or the backend fails.
    fn encode(&mut self, mel: &[f32]) -> Result<Window, NetworkError>;

    /// Forgets a window. Its sequences must be closed before.
    fn release(&mut self, window: Window);

    /// Opens an empty sequence that listens to a window.
    ///
    /// # Errors
    /// When the window is not open.
    fn open(&mut self, window: Window) -> Result<Sequence, NetworkError>;

    /// Opens a sequence that holds what another does, as beam search needs it.
    ///
    /// # Errors
    /// When the sequence is not open or the backend fails.
    fn fork(&mut self, sequence: Sequence) -> Result<Sequence, NetworkError>;

    /// Forgets a sequence.
    fn close(&mut self, sequence: Sequence);

    /// Appends tokens to some sequences and writes the logits that were asked for to `logits`, a line of `n_vocab` each, in
    /// order; what it held before is dropped.
    ///
    /// # Errors
    /// When a sequence is not open or becomes too long, or the backend fails.
    fn step(&mut self, rows: &[StepRow<'_>], logits: &mut Vec<f32>) -> Result<(), NetworkError>;

    /// Reads a whole sequence of tokens, from the start of transcript on, and says where its tokens lie.
    ///
    /// # Errors
    /// When the window is not open, there are too many tokens, or the backend fails.
    fn align(&mut self, window: Window, tokens: &[u32]) -> Result<Alignment, NetworkError>;
}
