//! Whisper's log-mel spectrogram, the numbers that its encoder was trained on.
//!
//! As `log_mel_spectrogram` of OpenAI's `whisper/audio.py` (and of mlx-whisper, which the fixtures come from): 16 kHz,
//! reflected by half a window at both ends, a periodic Hann window of 400 every 160 samples, squared magnitudes, Slaney's
//! mel filters, `log10` of at least 1e-10, nothing more than 8 below the maximum, then `(x + 4) / 4`.
//!
//! [`MelStream`] does it piece by piece: the frames do not depend on how the samples were cut. Only the floor 8 below the
//! maximum depends on what was heard so far; it is applied when frames are taken out ([`MelStream::normalized`]).

mod filters;

use std::{f64::consts::TAU, fmt, ops::Range, sync::Arc};

use realfft::{RealFftPlanner, RealToComplex, num_complex::Complex};
use thiserror::Error;

use filters::MelFilters;

/// Samples per second that speech models hear.
pub const SAMPLE_RATE: usize = 16_000;
/// Samples of one spectrum: 25 ms.
pub const N_FFT: usize = 400;
/// Samples from one frame to the next: 10 ms.
pub const HOP_LENGTH: usize = 160;
/// Samples reflected at either end, so that frame `i` is centred on sample `i * HOP_LENGTH`.
const PADDING: usize = N_FFT / 2;
/// Power below which a filter's output counts as this: -100 dB.
const POWER_FLOOR: f32 = 1e-10;
/// How far below the loudest filter output anything may lie, in powers of ten: 80 dB.
const RANGE: f32 = 8.0;

/// Why there is no spectrogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MelError {
    /// Whisper has models for 80 and for 128 filters.
    #[error("{n_mels} mel filters: Whisper models have 80 or 128 (num_mel_bins in config.json)")]
    UnknownFilters {
        /// The number asked for.
        n_mels: usize,
    },
    /// Reflection needs more samples than half a window.
    #[error("{samples} samples are too few for a spectrogram: {} are needed; pad with silence", PADDING + 1)]
    TooShort {
        /// The samples there were.
        samples: usize,
    },
}

/// Computes frames of a given number of filters. May be shared.
pub struct MelFrontEnd {
    filters: MelFilters,
    fft: Arc<dyn RealToComplex<f32>>,
    window: [f32; N_FFT],
}

impl fmt::Debug for MelFrontEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MelFrontEnd").field("n_mels", &self.n_mels()).finish_non_exhaustive()
    }
}

impl MelFrontEnd {
    /// A front end with `n_mels` filters.
    ///
    /// # Errors
    /// [`MelError::UnknownFilters`] when it is neither 80 nor 128.
    pub fn new(n_mels: usize) -> Result<Self, MelError> {
        if !matches!(n_mels, 80 | 128) {
            return Err(MelError::UnknownFilters { n_mels });
        }
        Ok(Self {
            filters: MelFilters::slaney(n_mels),
            fft: RealFftPlanner::new().plan_fft_forward(N_FFT),
            window: std::array::from_fn(|index| (0.5 - 0.5 * (TAU * index as f64 / N_FFT as f64).cos()) as f32),
        })
    }

    /// Filters per frame.
    #[must_use]
    pub fn n_mels(&self) -> usize {
        self.filters.count()
    }

    /// The normalized spectrogram of `samples` (mono, 16 kHz) followed by `padding` zeros: one frame for each whole
    /// [`HOP_LENGTH`], `[frames, n_mels]`, row-major.
    ///
    /// # Errors
    /// [`MelError::TooShort`] when that is at most half a window.
    pub fn log_mel(self: &Arc<Self>, samples: &[f32], padding: usize) -> Result<Vec<f32>, MelError> {
        let mut stream = MelStream::new(Arc::clone(self));
        stream.push(samples);
        stream.finish(padding)?;
        Ok(stream.normalized(0..stream.frames()))
    }

    /// Appends `log10` of the filter outputs of one window.
    fn frame(&self, samples: &[f32], scratch: &mut Scratch, out: &mut Vec<f32>) {
        if samples.iter().all(|&sample| sample == 0.0) {
            // Most of a padded window; the spectrum of nothing needs no transform.
            out.resize(out.len() + self.n_mels(), POWER_FLOOR.log10());
            return;
        }
        let Scratch { windowed, spectrum, fft, power } = scratch;
        windowed.clear();
        windowed.extend(samples.iter().zip(&self.window).map(|(sample, window)| sample * window));
        // The only errors are wrong lengths, and the lengths are the plan's own.
        let done = self.fft.process_with_scratch(windowed, spectrum, fft);
        debug_assert!(done.is_ok());
        power.clear();
        power.extend(spectrum.iter().map(|bin| bin.re * bin.re + bin.im * bin.im));
        out.extend(self.filters.apply(power).map(|output| output.max(POWER_FLOOR).log10()));
    }

    fn scratch(&self) -> Scratch {
        Scratch {
            windowed: Vec::with_capacity(N_FFT),
            spectrum: self.fft.make_output_vec(),
            fft: self.fft.make_scratch_vec(),
            power: Vec::with_capacity(N_FFT / 2 + 1),
        }
    }
}

#[derive(Debug)]
struct Scratch {
    windowed: Vec<f32>,
    spectrum: Vec<Complex<f32>>,
    fft: Vec<Complex<f32>>,
    power: Vec<f32>,
}

/// A spectrogram that grows with the samples.
#[derive(Debug)]
pub struct MelStream {
    front_end: Arc<MelFrontEnd>,
    scratch: Scratch,
    /// Samples from the next frame's window on; at the very beginning, samples as they came.
    waiting: Vec<f32>,
    /// Whether the reflected beginning has been put in front of `waiting`.
    begun: bool,
    ended: bool,
    samples: usize,
    /// `log10` of the filter outputs, from frame `dropped` on.
    log_mel: Vec<f32>,
    dropped: usize,
    maximum: f32,
}

impl MelStream {
    /// An empty spectrogram.
    #[must_use]
    pub fn new(front_end: Arc<MelFrontEnd>) -> Self {
        let scratch = front_end.scratch();
        Self {
            front_end,
            scratch,
            waiting: Vec::new(),
            begun: false,
            ended: false,
            samples: 0,
            log_mel: Vec::new(),
            dropped: 0,
            maximum: f32::NEG_INFINITY,
        }
    }

    /// Takes in any number of samples (mono, 16 kHz) and computes every frame whose window is complete. A sample that is
    /// not finite counts as silence.
    pub fn push(&mut self, samples: &[f32]) {
        debug_assert!(!self.ended, "push after finish");
        // In pieces, so that a long recording is not copied a second time.
        for piece in samples.chunks(SAMPLE_RATE) {
            self.samples += piece.len();
            self.waiting.extend(piece.iter().map(|&sample| if sample.is_finite() { sample } else { 0.0 }));
            self.advance(usize::MAX);
        }
    }

    /// Ends the signal after `padding` zeros. There are then `samples / HOP_LENGTH` frames, zeros counted; nothing can be
    /// pushed any more.
    ///
    /// # Errors
    /// [`MelError::TooShort`] when signal and zeros together are at most half a window.
    pub fn finish(&mut self, padding: usize) -> Result<(), MelError> {
        if self.samples + padding <= PADDING {
            return Err(MelError::TooShort { samples: self.samples + padding });
        }
        let mut zeros = padding;
        while zeros > 0 {
            let piece = zeros.min(SAMPLE_RATE);
            self.samples += piece;
            self.waiting.resize(self.waiting.len() + piece, 0.0);
            self.advance(usize::MAX);
            zeros -= piece;
        }
        let end = self.waiting.len();
        for distance in 0..PADDING {
            self.waiting.push(self.waiting[end - 2 - distance]);
        }
        // The reference makes one frame more and drops it before it looks for the maximum.
        self.advance(self.samples / HOP_LENGTH);
        self.ended = true;
        Ok(())
    }

    /// Whether the signal was ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.ended
    }

    /// Frames computed so far.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.dropped + self.log_mel.len() / self.front_end.n_mels()
    }

    /// Forgets the frames before `frame`, so that a long recording takes flat memory. The maximum keeps counting them.
    pub fn discard_before(&mut self, frame: usize) {
        let gone = frame.min(self.frames()).saturating_sub(self.dropped);
        self.log_mel.drain(..gone * self.front_end.n_mels());
        self.dropped += gone;
    }

    /// Frames as Whisper takes them, `[frames, n_mels]`: nothing lies more than 80 dB below the loudest of everything
    /// pushed so far. Of a whole recording that is the reference's spectrogram; taken out earlier, a recording that gets
    /// louder later has a lower floor. Frames that were discarded or are not there yet are left out.
    #[must_use]
    pub fn normalized(&self, frames: Range<usize>) -> Vec<f32> {
        let floor = self.maximum - RANGE;
        let width = self.front_end.n_mels();
        let first = frames.start.clamp(self.dropped, self.frames()) - self.dropped;
        let last = (frames.end.clamp(self.dropped, self.frames()) - self.dropped).max(first);
        self.log_mel[first * width..last * width].iter().map(|&output| (output.max(floor) + 4.0) / 4.0).collect()
    }

    /// Computes frames while their windows are complete, up to `limit` in all.
    fn advance(&mut self, limit: usize) {
        if !self.begun {
            if self.waiting.len() <= PADDING {
                return;
            }
            let reflected: Vec<f32> = self.waiting[1..=PADDING].iter().rev().copied().collect();
            self.waiting.splice(0..0, reflected);
            self.begun = true;
        }
        let mut start = 0;
        while start + N_FFT <= self.waiting.len() && self.frames() < limit {
            let known = self.log_mel.len();
            let window = &self.waiting[start..start + N_FFT];
            self.front_end.frame(window, &mut self.scratch, &mut self.log_mel);
            self.maximum = self.log_mel[known..].iter().copied().fold(self.maximum, f32::max);
            start += HOP_LENGTH;
        }
        self.waiting.drain(..start);
    }
}

#[cfg(test)]
mod tests;
