//! Whisper: windows of log-mel to text.
//!
//! [`WhisperNetwork`] is the border: below it, an architecture on a backend; above it, decoding, which sees log-mel
//! windows, token ids and logits and knows nothing of tensors.

mod network;
mod options;
mod transcript;

pub use network::{Alignment, NetworkError, Sequence, StepRow, WhisperDimensions, WhisperNetwork, Window};
pub use options::{Task, TranscribeOptions};
pub use transcript::{Transcript, TranscriptSegment, TranscriptWord};
