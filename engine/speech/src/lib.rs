//! Samples to text: what dictation and transcription are made of.
//!
//! Audio goes through in this order: [`AudioReader`] makes mono 16 kHz of any file, piece by piece ([`DeliveryWatch`] says
//! whether a microphone delivers any); [`VadSession`] says how probable speech is, [`Segmenter`] where an utterance begins
//! and ends, [`UtteranceStream`] cuts it out, and [`WindowStream`] says what is recognised together; [`MelStream`] makes the
//! spectrogram that Whisper hears, [`Transcriber`] makes text of it; [`LocalAgreement`] turns hypotheses into partial text
//! that does not change; [`TextStage`] makes of recognised text what the user wants to see.
//!
//! A [`DictationSession`] goes all this way for one stream, live or from a file; a [`SpeechEngine`] is the thread that owns
//! the model.

mod agreement;
mod audio;
mod delivery;
mod engine;
mod mel;
mod recognizer;
mod segment;
mod session;
mod subtitles;
#[cfg(test)]
mod test_support;
mod text;
mod utterances;
mod vad;
mod whisper;
mod windows;

pub use agreement::{LocalAgreement, TimedWord};
pub use audio::{AudioError, AudioInfo, AudioReader, PcmError, PcmFormat, PcmStream, SampleFormat};
pub use delivery::{Delivery, DeliveryWatch};
pub use engine::{
    Recognition, SpeechEngine, SpeechEngineOptions, SpeechError, SpeechHold, SpeechPriority, SpeechStatus,
};
pub use mel::{HOP_LENGTH, MelError, MelFrontEnd, MelStream, N_FFT, SAMPLE_RATE};
pub use recognizer::Recognizer;
pub use segment::{Segment, SegmentEvent, Segmenter, SegmenterOptions};
pub use session::{DictationSession, FinishedWindow, SessionOptions, SessionText, SessionWork, WorkFailure, WorkKind};
pub use subtitles::{to_srt, to_vtt};
pub use text::{ChineseScript, Replacement, TextError, TextOptions, TextStage};
pub use utterances::{Utterance, UtteranceStream};
pub use vad::{SileroVad, VAD_CHUNK, VadError, VadSession};
pub use whisper::*;
pub use windows::{OpenWindow, SpeechWindow, WindowOptions, WindowStream};
