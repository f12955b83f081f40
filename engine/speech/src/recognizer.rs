//! What gives text for audio, whatever it is made of.

use crate::{TranscribeError, TranscribeObserver, TranscribeOptions, Transcriber, Transcript, TranscriptSegment};

/// A loaded speech model. It belongs to the thread that loaded it.
pub trait Recognizer {
    /// The text of mono samples at 16 kHz. `is_cancelled` is asked often; when it says yes, the error is
    /// [`TranscribeError::Cancelled`].
    ///
    /// # Errors
    /// [`TranscribeError`].
    fn recognize(
        &mut self,
        samples: &[f32],
        options: &TranscribeOptions,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Transcript, TranscribeError>;
}

struct Cancellation<'a>(&'a dyn Fn() -> bool);

impl TranscribeObserver for Cancellation<'_> {
    fn segment(&mut self, _: &TranscriptSegment) {}

    fn progress(&mut self, _: f64) {}

    fn is_cancelled(&self) -> bool {
        (self.0)()
    }
}

impl Recognizer for Transcriber {
    fn recognize(
        &mut self,
        samples: &[f32],
        options: &TranscribeOptions,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Transcript, TranscribeError> {
        self.transcribe(samples, options.clone(), &mut Cancellation(is_cancelled))
    }
}
