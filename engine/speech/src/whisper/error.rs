//! Why a transcription gave nothing.

use super::{network::NetworkError, tokenizer::WhisperTokenizerError};
use crate::MelError;

/// Why a transcription gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum TranscribeError {
    /// The network failed.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] WhisperTokenizerError),
    /// The model hears other spectrograms than Whisper's.
    #[error(transparent)]
    Mel(#[from] MelError),
    /// No such language.
    #[error("{name:?} is no language that Whisper knows; name one as `de` or `german`, or none to have it detected")]
    UnknownLanguage {
        /// What was asked for.
        name: String,
    },
    /// This model does not know the language.
    #[error("this model does not know {language}; use {remedy}")]
    LanguageNotInModel {
        /// The language's name.
        language: &'static str,
        /// Which models do.
        remedy: &'static str,
    },
    /// Only multilingual models translate.
    #[error("this model knows English only and cannot translate; use a multilingual model, such as whisper-base")]
    CannotTranslate,
    /// Nothing to try.
    #[error("no temperature was given; 0 takes the likeliest text")]
    NoTemperature,
    /// The model's arithmetic broke down.
    #[error("the model gives no numbers for this audio; its weights are damaged: remove the model and pull it again")]
    NotFinite,
    /// Whoever asked wants it no more.
    #[error("the transcription was cancelled")]
    Cancelled,
}
