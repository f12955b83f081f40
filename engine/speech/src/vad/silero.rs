//! Silero VAD v6 for 16 kHz, on the kernels of `linnet-kernels`.
//!
//! The network, as the ONNX files of the Python package `silero-vad` 6.2.3 state it: a chunk of 512 samples, with the
//! last 64 of the chunk before it, is reflected by 64 at its end and cut into four spectra of 256 samples, 128 apart;
//! the magnitudes pass four convolutions with ReLU, which leave one vector of 128; an LSTM cell carries the state from
//! chunk to chunk; its output gives the probability.
//!
//! Only the recurrent product has to be done chunk by chunk. Everything before it is done for a whole batch at once, so
//! that the weights are read once. The file states the spectrum as a convolution; it is the discrete Fourier transform
//! under a periodic Hann window (to 8e-8), so an FFT computes it.

use std::{f64::consts::TAU, fmt, sync::Arc};

use linnet_kernels::{Activation, Context, Matrix, Precision, Product, activate_in_place, matmul};
use realfft::{RealFftPlanner, RealToComplex, num_complex::Complex};

use super::{
    VAD_CHUNK,
    weights::{VadError, Weights, matrix},
};

/// Samples of the chunk before that a chunk sees.
const CONTEXT: usize = 64;
/// Samples reflected at a chunk's end.
const REFLECTED: usize = 64;
/// Samples of one spectrum.
const WINDOW: usize = 256;
/// Samples from one spectrum to the next.
const HOP: usize = 128;
/// Spectra of a chunk.
const SPECTRA: usize = (CONTEXT + VAD_CHUNK + REFLECTED - WINDOW) / HOP + 1;
/// Magnitudes of a spectrum.
const BINS: usize = WINDOW / 2 + 1;
/// Outputs of the first and the last convolution, and the width of the LSTM.
const WIDE: usize = 128;
/// Outputs of the second and the third convolution.
const NARROW: usize = 64;

/// The weights of the detector.
pub struct SileroVad {
    context: Context,
    fft: Arc<dyn RealToComplex<f32>>,
    window: [f32; WINDOW],
    convolutions: [Convolution; 4],
    input_gates: Matrix,
    recurrent_gates: Matrix,
    /// Both biases of the gates together.
    gate_bias: Vec<f32>,
    output: Vec<f32>,
    output_bias: f32,
}

impl fmt::Debug for SileroVad {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SileroVad").field("isa", &self.context.isa()).finish_non_exhaustive()
    }
}

/// A convolution of width 3 over the few positions of a chunk, as a product.
struct Convolution {
    weight: Matrix,
    bias: Vec<f32>,
}

/// What a stream carries from chunk to chunk.
#[derive(Debug, Clone)]
pub(super) struct State {
    tail: [f32; CONTEXT],
    hidden: [f32; WIDE],
    cell: [f32; WIDE],
}

impl Default for State {
    fn default() -> Self {
        Self { tail: [0.0; CONTEXT], hidden: [0.0; WIDE], cell: [0.0; WIDE] }
    }
}

/// Buffers of a session, so that a chunk allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    spectrum: Vec<Complex<f32>>,
    fft: Vec<Complex<f32>>,
    rows: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    gates: Vec<f32>,
}

impl SileroVad {
    /// The detector with the weights that come with Linnet.
    ///
    /// # Errors
    /// [`VadError`] when memory is short.
    pub fn bundled() -> Result<Self, VadError> {
        Self::from_bytes(include_bytes!("../../../../assets/silero/silero_vad_16k.safetensors"), Context::new(1))
    }

    /// The detector from the bytes of `assets/silero/silero_vad_16k.safetensors`, to run on `context`. One thread is best: a chunk is
    /// too little work to share.
    ///
    /// # Errors
    /// [`VadError`] when the bytes are not those weights, or memory is short.
    pub fn from_bytes(bytes: &[u8], context: Context) -> Result<Self, VadError> {
        let weights = Weights::new(bytes)?;
        let convolution = |weight, bias, [outputs, inputs]: [usize; 2], taps| {
            Ok::<_, VadError>(Convolution {
                weight: weights.convolution(&context, weight, [outputs, inputs], taps)?,
                bias: weights.take(bias, &[outputs])?,
            })
        };
        // The third convolution sees nothing but padding under its first tap, the fourth has a single position.
        let convolutions = [
            convolution("conv1.weight", "conv1.bias", [WIDE, BINS], 0..3)?,
            convolution("conv2.weight", "conv2.bias", [NARROW, WIDE], 0..3)?,
            convolution("conv3.weight", "conv3.bias", [NARROW, NARROW], 1..3)?,
            convolution("conv4.weight", "conv4.bias", [WIDE, NARROW], 1..2)?,
        ];
        let gates = |name| {
            let mut rows = weights.take(name, &[4 * WIDE, WIDE])?;
            sigmoids_first(&mut rows, WIDE);
            matrix(&context, 4 * WIDE, WIDE, &rows)
        };
        let input_gates = gates("lstm_cell.weight_ih")?;
        let recurrent_gates = gates("lstm_cell.weight_hh")?;
        let mut gate_bias = weights.take("lstm_cell.bias_ih", &[4 * WIDE])?;
        let recurrent_bias = weights.take("lstm_cell.bias_hh", &[4 * WIDE])?;
        gate_bias.iter_mut().zip(recurrent_bias).for_each(|(sum, bias)| *sum += bias);
        sigmoids_first(&mut gate_bias, 1);
        let output = weights.take("final_conv.weight", &[1, WIDE, 1])?;
        let output_bias = weights.take("final_conv.bias", &[1])?[0];
        let hann = |index: usize| (0.5 - 0.5 * (TAU * index as f64 / WINDOW as f64).cos()) as f32;
        Ok(Self {
            fft: RealFftPlanner::new().plan_fft_forward(WINDOW),
            window: std::array::from_fn(hann),
            convolutions,
            input_gates,
            recurrent_gates,
            gate_bias,
            output,
            output_bias,
            context,
        })
    }

    /// Appends a probability for each whole chunk of `samples`.
    pub(super) fn run(
        &self,
        samples: &[f32],
        state: &mut State,
        scratch: &mut Scratch,
        probabilities: &mut Vec<f32>,
    ) -> Result<(), VadError> {
        let chunks = samples.len() / VAD_CHUNK;
        self.magnitudes(samples, &mut state.tail, scratch);
        let Scratch { rows, a, b, gates, .. } = scratch;
        // Spectra 4 -> 4 positions: each row is three neighbouring spectra, with padding before and after.
        let padded = (SPECTRA + 2) * BINS;
        rows.clear();
        for chunk in a.chunks_exact(padded) {
            (0..SPECTRA).for_each(|position| rows.extend_from_slice(&chunk[position * BINS..][..3 * BINS]));
        }
        self.convolve(0, rows, chunks * SPECTRA, b)?;
        // 4 -> 2 positions, two apart: the first sees padding under its first tap.
        rows.clear();
        for chunk in b.chunks_exact(SPECTRA * WIDE) {
            rows.resize(rows.len() + WIDE, 0.0);
            rows.extend_from_slice(&chunk[..2 * WIDE]);
            rows.extend_from_slice(&chunk[WIDE..]);
        }
        self.convolve(1, rows, chunks * 2, a)?;
        // 2 -> 1 position: the two are the row.
        self.convolve(2, a, chunks, b)?;
        self.convolve(3, b, chunks, a)?;
        gates.resize(chunks * 4 * WIDE, 0.0);
        let product = Product::new(&self.input_gates, gates).with_bias(Some(&self.gate_bias));
        matmul(&self.context, Precision::Exact, a, chunks, &mut [product])?;
        for gates in gates.chunks_exact_mut(4 * WIDE) {
            let product = Product::new(&self.recurrent_gates, gates).accumulate();
            matmul(&self.context, Precision::Exact, &state.hidden, 1, &mut [product])?;
            self.step(gates, state);
            let spoken: f32 =
                state.hidden.iter().zip(&self.output).map(|(hidden, weight)| hidden.max(0.0) * weight).sum();
            probabilities.push(Activation::Sigmoid.apply(spoken + self.output_bias));
        }
        Ok(())
    }

    /// The magnitudes of all spectra, `[chunk][position][bin]`, with a position of zeros before and after each chunk's.
    fn magnitudes(&self, samples: &[f32], tail: &mut [f32; CONTEXT], scratch: &mut Scratch) {
        let Scratch { spectrum, fft, a: magnitudes, .. } = scratch;
        spectrum.resize(BINS, Complex::default());
        fft.resize(self.fft.get_scratch_len(), Complex::default());
        magnitudes.clear();
        magnitudes.resize(samples.len() / VAD_CHUNK * (SPECTRA + 2) * BINS, 0.0);
        let mut heard = [0.0; CONTEXT + VAD_CHUNK + REFLECTED];
        for (samples, chunk) in samples.chunks_exact(VAD_CHUNK).zip(magnitudes.chunks_exact_mut((SPECTRA + 2) * BINS)) {
            heard[..CONTEXT].copy_from_slice(tail);
            heard[CONTEXT..CONTEXT + VAD_CHUNK].copy_from_slice(samples);
            let end = CONTEXT + VAD_CHUNK;
            for distance in 0..REFLECTED {
                heard[end + distance] = heard[end - 2 - distance];
            }
            tail.copy_from_slice(&samples[VAD_CHUNK - CONTEXT..]);
            for (position, out) in chunk[BINS..][..SPECTRA * BINS].chunks_exact_mut(BINS).enumerate() {
                let mut windowed: [f32; WINDOW] = self.window;
                windowed.iter_mut().zip(&heard[position * HOP..]).for_each(|(window, sample)| *window *= sample);
                // The only errors are wrong lengths, and the lengths are the plan's own.
                let done = self.fft.process_with_scratch(&mut windowed, spectrum, fft);
                debug_assert!(done.is_ok());
                let magnitude = |bin: &Complex<f32>| (bin.re * bin.re + bin.im * bin.im).sqrt();
                out.iter_mut().zip(spectrum.iter()).for_each(|(out, bin)| *out = magnitude(bin));
            }
        }
    }

    /// `out = relu(rows * weight^T + bias)`.
    fn convolve(&self, index: usize, rows: &[f32], count: usize, out: &mut Vec<f32>) -> Result<(), VadError> {
        let Convolution { weight, bias } = &self.convolutions[index];
        out.resize(count * weight.out_features(), 0.0);
        let product = Product::new(weight, out).with_bias(Some(bias));
        matmul(&self.context, Precision::Exact, rows, count, &mut [product])?;
        activate_in_place(&self.context, Activation::Relu, out);
        Ok(())
    }

    /// One step of the LSTM cell: `c = f c + i g`, `h = o tanh(c)`.
    fn step(&self, gates: &mut [f32], state: &mut State) {
        let (sigmoids, candidate) = gates.split_at_mut(3 * WIDE);
        activate_in_place(&self.context, Activation::Sigmoid, sigmoids);
        activate_in_place(&self.context, Activation::Tanh, candidate);
        let (input, others) = sigmoids.split_at(WIDE);
        let (forget, output) = others.split_at(WIDE);
        for index in 0..WIDE {
            state.cell[index] = forget[index] * state.cell[index] + input[index] * candidate[index];
        }
        state.hidden = state.cell;
        activate_in_place(&self.context, Activation::Tanh, &mut state.hidden);
        state.hidden.iter_mut().zip(output).for_each(|(hidden, output)| *hidden *= output);
    }
}

/// Brings the gates' blocks from the file's order (input, forget, candidate, output) to one with the candidate last, so
/// that the three that pass a sigmoid lie together.
fn sigmoids_first(rows: &mut [f32], width: usize) {
    rows[2 * WIDE * width..].rotate_left(WIDE * width);
}
