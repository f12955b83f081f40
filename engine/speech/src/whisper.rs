//! Whisper: windows of log-mel to text.
//!
//! [`WhisperNetwork`] is the border: below it, an architecture on a backend; above it, decoding, which sees log-mel
//! windows, token ids and logits and knows nothing of tensors.

mod alignment;
mod backend_network;
mod beam;
mod compression;
mod decode;
mod error;
mod filter;
#[cfg(test)]
mod golden;
mod guards;
mod language;
mod listen;
mod load;
mod network;
mod options;
mod prompt;
mod run;
#[cfg(test)]
mod scripted;
mod segments;
mod timing;
mod tokenizer;
mod transcriber;
mod transcript;

pub use error::TranscribeError;
pub use language::{LANGUAGES, Language};
pub use load::{LoadNetworkError, NetworkOptions, load_network};
pub use network::{Alignment, NetworkError, Sequence, StepRow, WhisperDimensions, WhisperNetwork, Window};
pub use options::{Task, TranscribeOptions};
pub use prompt::InitialPrompt;
pub use run::{ResumePoint, TranscriptionRun};
pub use tokenizer::{SpecialIds, WhisperTokenizer, WhisperTokenizerError};
pub use transcriber::{TranscribeObserver, Transcriber};
pub use transcript::{Transcript, TranscriptSegment, TranscriptWord};
