//! Whisper: an encoder that hears a window of audio and a decoder that writes what it heard.
//!
//! Written after mlx-whisper 0.4.3's `mlx_whisper/whisper.py`, operation for operation.

mod config;

pub use config::{WHISPER_MODEL_TYPE, WhisperConfig};
