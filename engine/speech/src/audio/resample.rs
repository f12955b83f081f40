//! Any sample rate to 16 kHz.

use rubato::{
    Fft, FixedSync, Indexing, Resampler as _, WindowFunction, audioadapter_buffers::direct::InterleavedSlice,
};

use crate::mel::SAMPLE_RATE;

/// Samples taken in at once, at least: a longer block cuts off more sharply.
const BLOCK: usize = 2048;

/// Samples given out at once, at least. With these two the sound is whole up to 7.7 kHz of the 8 that 16 kHz can hold.
const BLOCK_OUT: usize = 1024;

/// The highest rate that is taken for one. Sound cards end at 768 kHz; the transform grows with the rate.
const MAX_RATE: u32 = 768_000;

/// A stream of samples on its way to 16 kHz. The output has the length of the input, to the sample, and no delay.
pub(super) struct Resampler {
    rate: u32,
    conversion: Option<Conversion>,
}

impl std::fmt::Debug for Resampler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Resampler").field("rate", &self.rate).finish_non_exhaustive()
    }
}

struct Conversion {
    fft: Fft<f32>,
    waiting: Vec<f32>,
    block: Vec<f32>,
    taken: u64,
    given: u64,
    /// Samples of the filter's delay that are still to be left out.
    delay: usize,
}

impl Resampler {
    /// A stream at `rate` samples per second.
    pub(super) fn new(rate: u32) -> Result<Self, String> {
        if rate == 0 || rate > MAX_RATE {
            return Err(format!("a sample rate of {rate} Hz"));
        }
        if rate as usize == SAMPLE_RATE {
            return Ok(Self { rate, conversion: None });
        }
        let step = greatest_common_divisor(rate as usize, SAMPLE_RATE);
        let (from, to) = (rate as usize / step, SAMPLE_RATE / step);
        // The filter of an odd block has its middle between two samples, and would be half a sample late.
        let units = BLOCK.div_ceil(from).max(BLOCK_OUT.div_ceil(to)).next_multiple_of(2);
        let block = from * units;
        let window = WindowFunction::BlackmanHarris2;
        let fft = Fft::new_custom(rate as usize, SAMPLE_RATE, block, 1, 1, window, FixedSync::Both)
            .map_err(|error| error.to_string())?;
        let conversion = Conversion {
            delay: fft.output_delay(),
            block: vec![0.0; fft.output_frames_max()],
            fft,
            waiting: Vec::new(),
            taken: 0,
            given: 0,
        };
        Ok(Self { rate, conversion: Some(conversion) })
    }

    /// The rate of what comes in.
    pub(super) fn rate(&self) -> u32 {
        self.rate
    }

    /// Takes in samples and appends what is ready.
    pub(super) fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let Some(conversion) = &mut self.conversion else {
            out.extend_from_slice(samples);
            return;
        };
        conversion.taken += samples.len() as u64;
        conversion.waiting.extend_from_slice(samples);
        let size = conversion.fft.input_frames_next();
        let mut start = 0;
        while conversion.waiting.len() - start >= size {
            conversion.convert(start, size, u64::MAX, out);
            start += size;
        }
        conversion.waiting.drain(..start);
    }

    /// Appends what the filter still holds.
    pub(super) fn finish(&mut self, out: &mut Vec<f32>) {
        let Some(conversion) = &mut self.conversion else { return };
        let rate = u128::from(self.rate);
        let wanted = ((u128::from(conversion.taken) * SAMPLE_RATE as u128 + rate / 2) / rate) as u64;
        while conversion.given < wanted {
            let left = conversion.waiting.len();
            conversion.convert(0, left, wanted, out);
            conversion.waiting.clear();
        }
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Conversion {
    /// Converts a block of `length` samples (the rest is silence) and appends it, up to `wanted` samples in all.
    fn convert(&mut self, start: usize, length: usize, wanted: u64, out: &mut Vec<f32>) {
        let frames = self.block.len();
        let source = &self.waiting[start..start + length];
        let indexing = Indexing::new().partial_len(length);
        let adapters =
            (InterleavedSlice::new(source, 1, length), InterleavedSlice::new_mut(&mut self.block, 1, frames));
        let (Ok(source), Ok(mut target)) = adapters else { return };
        // Sizes are the resampler's own; the only errors are sizes that do not fit.
        let written = match self.fft.process_into_buffer(&source, &mut target, Some(&indexing)) {
            Ok((_, written)) => written,
            Err(error) => {
                debug_assert!(false, "{error}");
                self.given = wanted;
                return;
            }
        };
        let skipped = self.delay.min(written);
        self.delay -= skipped;
        let room = usize::try_from(wanted - self.given).unwrap_or(usize::MAX);
        let end = written.min(skipped.saturating_add(room));
        out.extend_from_slice(&self.block[skipped..end]);
        self.given += (end - skipped) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::Resampler;

    fn tone(rate: u32, hertz: f64, count: usize) -> Vec<f32> {
        (0..count).map(|index| (TAU * hertz * index as f64 / f64::from(rate)).sin() as f32 * 0.5).collect()
    }

    fn resampled(rate: u32, samples: &[f32], piece: usize) -> Vec<f32> {
        let mut resampler = Resampler::new(rate).unwrap();
        let mut out = Vec::new();
        samples.chunks(piece).for_each(|piece| resampler.push(piece, &mut out));
        resampler.finish(&mut out);
        out
    }

    #[test]
    fn a_tone_keeps_its_place_length_and_height_at_every_rate() {
        for rate in [8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 192_000] {
            let count = rate as usize / 2 + 17;
            let got = resampled(rate, &tone(rate, 440.0, count), 1000);
            let expected = tone(16_000, 440.0, got.len());
            assert_eq!(got.len(), (count as f64 * 16_000.0 / f64::from(rate)).round() as usize, "{rate}");
            // The ends are beside silence, which is no tone.
            let inner = 400..got.len() - 400;
            let worst = inner.map(|index| (got[index] - expected[index]).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-3, "{rate} Hz: {worst}");
        }
    }

    #[test]
    fn what_16_khz_cannot_hold_does_not_fold_back() {
        for (rate, hertz) in [(44_100, 9000.0), (48_000, 12_000.0), (96_000, 20_000.0), (22_050, 10_000.0)] {
            let got = resampled(rate, &tone(rate, hertz, rate as usize / 2), 999);
            let loudest = got[400..got.len() - 400].iter().fold(0.0f32, |most, sample| most.max(sample.abs()));
            assert!(loudest < 1e-3, "{hertz} Hz at {rate}: {loudest}");
        }
    }

    #[test]
    fn pieces_of_any_size_give_the_same_samples() {
        let samples = tone(44_100, 1000.0, 20_001);
        let whole = resampled(44_100, &samples, samples.len());
        for piece in [1, 13, 441, 5000] {
            assert_eq!(resampled(44_100, &samples, piece), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn a_few_samples_and_none_come_out_as_many() {
        assert_eq!(resampled(48_000, &[], 1).len(), 0);
        assert_eq!(resampled(48_000, &[0.1; 3], 1).len(), 1);
        assert_eq!(resampled(8000, &[0.1; 3], 1).len(), 6);
        assert!(Resampler::new(0).is_err() && Resampler::new(3_000_000).is_err());
    }
}
