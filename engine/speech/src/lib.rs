//! Samples to text: what dictation and transcription are made of.
//!
//! Audio goes through in this order: [`AudioReader`] makes mono 16 kHz of any file, piece by piece ([`DeliveryWatch`] says
//! whether a microphone delivers any); [`VadSession`] says how probable speech is, [`Segmenter`] where an utterance begins
//! and ends, and [`UtteranceStream`] cuts it out; [`MelStream`] makes the spectrogram that Whisper hears;
//! [`LocalAgreement`] turns hypotheses into partial text that does not change; [`TextStage`] makes of recognised text what
//! the user wants to see.

mod agreement;
mod audio;
mod delivery;
mod mel;
mod segment;
#[cfg(test)]
mod test_support;
mod text;
mod utterances;
mod vad;
mod whisper;

pub use agreement::{LocalAgreement, TimedWord};
pub use audio::{AudioError, AudioInfo, AudioReader};
pub use delivery::{Delivery, DeliveryWatch};
pub use mel::{HOP_LENGTH, MelError, MelFrontEnd, MelStream, N_FFT, SAMPLE_RATE};
pub use segment::{Segment, SegmentEvent, Segmenter, SegmenterOptions};
pub use text::{ChineseScript, Replacement, TextError, TextOptions, TextStage};
pub use utterances::{Utterance, UtteranceStream};
pub use vad::{SileroVad, VAD_CHUNK, VadError, VadSession};
pub use whisper::*;
