//! Speech to text: the models that do it, and what they are doing.
//!
//! [`SpeechManager`] knows the speech models on disk and has an engine for each that was used; [`transcription`] takes one
//! recording through, [`live`] one stream of speech, and [`sessions`] keeps the open ones.

pub(crate) mod live;
mod manager;
pub(crate) mod sessions;
pub(crate) mod transcription;

pub use manager::{SpeechManager, SpeechSource};
