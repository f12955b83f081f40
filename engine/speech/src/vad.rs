//! Voice activity: how probable it is that somebody speaks, every 32 ms.
//!
//! [`SileroVad`] holds the weights of Silero VAD v6 and may be shared; a [`VadSession`] is one stream of samples through
//! it. What to make of the probabilities is decided in [`crate::Segmenter`].

mod silero;
mod weights;

use std::sync::Arc;

pub use silero::SileroVad;
pub use weights::VadError;

use silero::{Scratch, State};

/// Samples that one probability speaks of: 32 ms at 16 kHz.
pub const VAD_CHUNK: usize = 512;

/// Chunks computed in one go when many are waiting. The weights are then read once for all of them; more than this
/// gains nothing and delays the first probability.
const BATCH: usize = 32;

/// One stream of 16 kHz samples through the detector. A new session knows nothing of any other; [`VadSession::reset`]
/// makes an old one new.
#[derive(Debug)]
pub struct VadSession {
    model: Arc<SileroVad>,
    state: State,
    scratch: Scratch,
    /// Samples that do not make a whole chunk yet.
    waiting: Vec<f32>,
}

impl VadSession {
    /// A session at its beginning.
    #[must_use]
    pub fn new(model: Arc<SileroVad>) -> Self {
        Self { model, state: State::default(), scratch: Scratch::default(), waiting: Vec::new() }
    }

    /// Takes in `samples` (mono, 16 kHz, any number) and appends a probability in 0..=1 for every [`VAD_CHUNK`] samples
    /// that are complete. A sample that is not finite counts as silence: one of them would spoil the state for good.
    ///
    /// # Errors
    /// [`VadError`] when memory is short.
    pub fn push(&mut self, samples: &[f32], probabilities: &mut Vec<f32>) -> Result<(), VadError> {
        let finite = |&sample: &f32| if sample.is_finite() { sample } else { 0.0 };
        for part in samples.chunks(BATCH * VAD_CHUNK) {
            self.waiting.extend(part.iter().map(finite));
            let whole = self.waiting.len() / VAD_CHUNK * VAD_CHUNK;
            for batch in self.waiting[..whole].chunks(BATCH * VAD_CHUNK) {
                self.model.run(batch, &mut self.state, &mut self.scratch, probabilities)?;
            }
            self.waiting.drain(..whole);
        }
        Ok(())
    }

    /// Ends the stream: an unfinished chunk is filled with silence and judged, as the reference does. The session is new
    /// afterwards.
    ///
    /// # Errors
    /// As [`VadSession::push`].
    pub fn finish(&mut self, probabilities: &mut Vec<f32>) -> Result<(), VadError> {
        if !self.waiting.is_empty() {
            self.waiting.resize(VAD_CHUNK, 0.0);
            self.model.run(&self.waiting, &mut self.state, &mut self.scratch, probabilities)?;
        }
        self.reset();
        Ok(())
    }

    /// Forgets everything heard so far.
    pub fn reset(&mut self) {
        self.state = State::default();
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests;
