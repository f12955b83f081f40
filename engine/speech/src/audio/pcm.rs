//! Bare samples, as microphones and programs send them, to mono at 16 kHz.

use thiserror::Error;

use super::resample::Resampler;

/// How a sample is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SampleFormat {
    /// 32-bit floats, little-endian, from -1 to 1.
    #[default]
    F32,
    /// 16-bit whole numbers, little-endian.
    S16,
}

impl SampleFormat {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::S16 => 2,
        }
    }
}

/// What the samples of a stream are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcmFormat {
    /// How each is written.
    pub samples: SampleFormat,
    /// Samples per second and channel.
    pub rate: u32,
    /// Channels, one sample of each after the other.
    pub channels: u16,
}

impl Default for PcmFormat {
    fn default() -> Self {
        Self { samples: SampleFormat::F32, rate: 16_000, channels: 1 }
    }
}

/// Why a format cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PcmError {
    /// No rate to resample from.
    #[error("{detail} cannot be resampled; send 8000 to 192000 Hz")]
    Rate {
        /// What is wrong.
        detail: String,
    },
    /// No channels, or too many.
    #[error("{channels} channels cannot be mixed; send 1 to 64")]
    Channels {
        /// How many.
        channels: u16,
    },
}

/// A stream of bare samples on its way to mono at 16 kHz; pieces may end anywhere.
#[derive(Debug)]
pub struct PcmStream {
    format: PcmFormat,
    resampler: Resampler,
    /// Bytes that do not make a whole frame yet.
    waiting: Vec<u8>,
    mono: Vec<f32>,
}

impl PcmStream {
    /// A stream at its beginning.
    ///
    /// # Errors
    /// [`PcmError`] when the format cannot be read.
    pub fn new(format: PcmFormat) -> Result<Self, PcmError> {
        if !(1..=64).contains(&format.channels) {
            return Err(PcmError::Channels { channels: format.channels });
        }
        let resampler = Resampler::new(format.rate).map_err(|detail| PcmError::Rate { detail })?;
        Ok(Self { format, resampler, waiting: Vec::new(), mono: Vec::new() })
    }

    /// The format of its samples.
    #[must_use]
    pub fn format(&self) -> PcmFormat {
        self.format
    }

    /// Takes in bytes and appends the samples that are complete, mono at 16 kHz.
    pub fn push(&mut self, bytes: &[u8], samples: &mut Vec<f32>) {
        self.waiting.extend_from_slice(bytes);
        let channels = usize::from(self.format.channels);
        let frame = channels * self.format.samples.bytes();
        let whole = self.waiting.len() / frame * frame;
        self.mono.clear();
        let share = 1.0 / channels as f32;
        self.mono.extend(self.waiting[..whole].chunks_exact(frame).map(|frame| {
            let sum: f32 = match self.format.samples {
                SampleFormat::F32 => frame.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).sum(),
                SampleFormat::S16 => {
                    frame.as_chunks::<2>().0.iter().map(|&bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0).sum()
                }
            };
            sum * share
        }));
        self.waiting.drain(..whole);
        self.resampler.push(&self.mono, samples);
    }

    /// Takes in frames that are floats already, as sound systems hand them out, and appends samples as
    /// [`PcmStream::push`] does.
    pub fn push_frames(&mut self, interleaved: &[f32], samples: &mut Vec<f32>) {
        let channels = usize::from(self.format.channels);
        let share = 1.0 / channels as f32;
        self.mono.clear();
        self.mono.extend(interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * share));
        self.resampler.push(&self.mono, samples);
    }

    /// Ends the stream and appends what the resampler still holds. Half a frame at the end is left out.
    pub fn finish(mut self, samples: &mut Vec<f32>) {
        self.resampler.finish(samples);
    }
}

#[cfg(test)]
mod tests {
    use super::{PcmError, PcmFormat, PcmStream, SampleFormat};

    fn sine(rate: usize, seconds: usize) -> Vec<f32> {
        (0..rate * seconds)
            .map(|index| (index as f32 / rate as f32 * 440.0 * std::f32::consts::TAU).sin() * 0.5)
            .collect()
    }

    fn read(format: PcmFormat, bytes: &[u8], piece: usize) -> Vec<f32> {
        let mut stream = PcmStream::new(format).unwrap();
        let mut samples = Vec::new();
        bytes.chunks(piece).for_each(|piece| stream.push(piece, &mut samples));
        stream.finish(&mut samples);
        samples
    }

    #[test]
    fn every_format_gives_the_same_sound_however_it_is_cut() {
        let expected = sine(16_000, 1);
        let floats: Vec<u8> = expected.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let plain = PcmFormat::default();
        for piece in [1, 7, 4096, floats.len()] {
            assert_eq!(read(plain, &floats, piece), expected, "pieces of {piece}");
        }
        let stereo: Vec<u8> = sine(48_000, 1)
            .iter()
            .flat_map(|sample| [((sample * 32_767.0) as i16).to_le_bytes(); 2].concat())
            .collect();
        let format = PcmFormat { samples: SampleFormat::S16, rate: 48_000, channels: 2 };
        let heard = read(format, &stereo, 1001);
        assert_eq!(heard.len(), expected.len());
        let middle = 2000..14_000;
        let worst = heard[middle.clone()].iter().zip(&expected[middle]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-3, "{worst}");
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let format = |rate, channels| PcmFormat { rate, channels, ..PcmFormat::default() };
        assert!(matches!(PcmStream::new(format(0, 1)), Err(PcmError::Rate { .. })));
        assert_eq!(PcmStream::new(format(16_000, 0)).unwrap_err(), PcmError::Channels { channels: 0 });
    }
}
