//! Slaney's mel filters, as librosa makes them: `filters.mel(sr=16000, n_fft=400, n_mels, htk=False, norm="slaney")`.

use super::{N_FFT, SAMPLE_RATE};

/// Width of a filter below [`BREAK_HERTZ`] (Slaney, Auditory Toolbox, 1998: 15 filters per kHz).
const LINEAR_HERTZ_PER_MEL: f64 = 200.0 / 3.0;
/// Where the scale turns from linear to logarithmic.
const BREAK_HERTZ: f64 = 1000.0;
/// Mels at [`BREAK_HERTZ`].
const BREAK_MEL: f64 = BREAK_HERTZ / LINEAR_HERTZ_PER_MEL;
/// Above it, 27 filters take the frequency to 6.4 times its value.
const LOG_RATIO: f64 = 6.4;
const LOG_STEPS: f64 = 27.0;

/// Triangular filters over the bins of a power spectrum, stored where they are not zero.
#[derive(Debug)]
pub(super) struct MelFilters {
    filters: Vec<Filter>,
}

#[derive(Debug)]
struct Filter {
    first_bin: usize,
    weights: Vec<f32>,
}

impl MelFilters {
    /// `count` filters from 0 Hz to half the sample rate, each of area 1 per Hz of its width.
    pub(super) fn slaney(count: usize) -> Self {
        let top = mel(SAMPLE_RATE as f64 / 2.0);
        let edge = |index: usize| hertz(top * index as f64 / (count + 1) as f64);
        let filter = |index| {
            let (low, centre, high) = (edge(index), edge(index + 1), edge(index + 2));
            let area = 2.0 / (high - low);
            let weight = |bin: usize| {
                let frequency = bin as f64 * SAMPLE_RATE as f64 / N_FFT as f64;
                let rising = (frequency - low) / (centre - low);
                let falling = (high - frequency) / (high - centre);
                // librosa keeps the triangles in single precision before it scales them.
                f64::from(rising.min(falling).max(0.0) as f32) * area
            };
            let bins = 0..=N_FFT / 2;
            let first_bin = bins.clone().find(|&bin| weight(bin) > 0.0).unwrap_or_default();
            let weights = bins.skip(first_bin).map(weight).take_while(|&weight| weight > 0.0);
            Filter { first_bin, weights: weights.map(|weight| weight as f32).collect() }
        };
        Self { filters: (0..count).map(filter).collect() }
    }

    pub(super) fn count(&self) -> usize {
        self.filters.len()
    }

    /// The output of each filter for a power spectrum of `N_FFT / 2 + 1` bins.
    pub(super) fn apply(&self, power: &[f32]) -> impl Iterator<Item = f32> {
        self.filters
            .iter()
            .map(|filter| filter.weights.iter().zip(&power[filter.first_bin..]).map(|(w, p)| w * p).sum())
    }

    /// All weights that are not zero, with their place in a matrix `[count, N_FFT / 2 + 1]`.
    #[cfg(test)]
    pub(super) fn entries(&self) -> Vec<(usize, f32)> {
        let row = |(index, filter): (usize, &Filter)| {
            let start = index * (N_FFT / 2 + 1) + filter.first_bin;
            filter.weights.iter().enumerate().map(move |(bin, &weight)| (start + bin, weight)).collect::<Vec<_>>()
        };
        self.filters.iter().enumerate().flat_map(row).collect()
    }
}

/// Mels of a frequency in Hz.
fn mel(hertz: f64) -> f64 {
    if hertz < BREAK_HERTZ {
        hertz / LINEAR_HERTZ_PER_MEL
    } else {
        BREAK_MEL + (hertz / BREAK_HERTZ).ln() * LOG_STEPS / LOG_RATIO.ln()
    }
}

/// The frequency in Hz of a mel.
fn hertz(mel: f64) -> f64 {
    if mel < BREAK_MEL {
        mel * LINEAR_HERTZ_PER_MEL
    } else {
        BREAK_HERTZ * ((mel - BREAK_MEL) * LOG_RATIO.ln() / LOG_STEPS).exp()
    }
}
