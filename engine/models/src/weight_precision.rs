//! Dense weights may be held in 8 bits, whatever the folder holds.

use linnet_compute::{AffineQuantization, Dtype, TensorView, Weight};

/// In which precision a model's dense matrices are held. Convolutions, norms, biases and tables of positions stay as stored,
/// and so do matrices that the folder holds quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightPrecision {
    /// As the folder has them.
    #[default]
    Stored,
    /// In 8 bits with one scale for every 64 inputs, rounded at load. Half the memory of 16-bit floats.
    Int8,
}

/// Inputs that share a scale.
const GROUP_SIZE: usize = 64;

/// Bits of a code.
const BITS: u32 = 8;

/// The code that stands for 0, and how many codes lie on either side of it.
const ZERO_CODE: f32 = 128.0;
const LARGEST_CODE: f32 = 127.0;

/// A dense matrix rounded to 8 bits: `w = scale * (code - 128)`, as affine quantization with biases of `-128 scale`. The
/// scale of a group is its largest magnitude over 127, rounded to f16 where that holds it, so that kernels need neither
/// biases nor wide scales (ggml's Q8_0 with groups twice as long).
#[derive(Debug)]
pub(crate) struct EightBitMatrix {
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    packed_shape: [usize; 2],
    group_shape: [usize; 2],
}

impl EightBitMatrix {
    /// Rounds a matrix `[out, in]` of floats. `None` if its rows do not divide into groups.
    pub(crate) fn round(weight: &TensorView<'_>) -> Option<Self> {
        let &[rows, columns] = weight.shape else { return None };
        if !columns.is_multiple_of(GROUP_SIZE) || !weight.dtype.is_float() {
            return None;
        }
        let groups = rows * columns / GROUP_SIZE;
        let mut codes = Vec::with_capacity(rows * columns);
        let (mut scales, mut biases) = (Vec::with_capacity(groups * 4), Vec::with_capacity(groups * 4));
        let mut values = [0.0_f32; GROUP_SIZE];
        for bytes in weight.bytes.chunks_exact(GROUP_SIZE * weight.dtype.size()) {
            widen(weight.dtype, bytes, &mut values);
            let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let scale = half::f16::from_f32(largest / LARGEST_CODE).to_f32();
            // Groups of tiny or huge numbers keep their scale in single precision.
            let scale = if scale.is_normal() && scale * ZERO_CODE < f32::from(half::f16::MAX) {
                scale
            } else {
                largest / LARGEST_CODE
            };
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            codes.extend(values.iter().map(|value| {
                let code = (value * inverse).round().clamp(-LARGEST_CODE, LARGEST_CODE);
                (code + ZERO_CODE) as u8
            }));
            scales.extend(scale.to_le_bytes());
            biases.extend((-ZERO_CODE * scale).to_le_bytes());
        }
        let packed_shape = [rows, columns * BITS as usize / 32];
        Some(Self { codes, scales, biases, packed_shape, group_shape: [rows, columns / GROUP_SIZE] })
    }

    /// The matrix as a weight of this name.
    pub(crate) fn weight<'a>(&'a self, name: &'a str) -> Weight<'a> {
        let floats = |bytes| TensorView { name, dtype: Dtype::F32, shape: &self.group_shape, bytes };
        Weight::Affine {
            quantization: AffineQuantization { bits: BITS, group_size: GROUP_SIZE },
            packed: TensorView { name, dtype: Dtype::U32, shape: &self.packed_shape, bytes: &self.codes },
            scales: floats(&self.scales),
            biases: floats(&self.biases),
        }
    }
}

fn widen(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    let pairs = bytes.as_chunks::<2>().0;
    match dtype {
        Dtype::F16 => {
            values.iter_mut().zip(pairs).for_each(|(to, pair)| *to = half::f16::from_le_bytes(*pair).to_f32())
        }
        Dtype::BF16 => {
            values.iter_mut().zip(pairs).for_each(|(to, pair)| *to = half::bf16::from_le_bytes(*pair).to_f32());
        }
        Dtype::F32 | Dtype::U32 => {
            values.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(to, word)| *to = f32::from_le_bytes(*word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_is_within_half_a_step_and_zero_stays_zero() {
        let (rows, columns) = (3, 2 * GROUP_SIZE);
        let mut values: Vec<f32> =
            (0..rows * columns).map(|index| ((index * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
        values[..GROUP_SIZE].fill(0.0);
        values[GROUP_SIZE..2 * GROUP_SIZE].iter_mut().for_each(|value| *value *= 1e-9);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let bytes: Vec<u8> = match dtype {
                Dtype::F16 => values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect(),
                Dtype::BF16 => values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            };
            let shape = [rows, columns];
            let view = TensorView { name: "w", dtype, shape: &shape, bytes: &bytes };
            let rounded = EightBitMatrix::round(&view).unwrap();
            let mut stored = vec![0.0; values.len()];
            for (bytes, values) in
                bytes.chunks_exact(GROUP_SIZE * dtype.size()).zip(stored.chunks_exact_mut(GROUP_SIZE))
            {
                widen(dtype, bytes, values);
            }
            for (index, stored) in stored.iter().enumerate() {
                let scale = rounded.scales.as_chunks::<4>().0[index / GROUP_SIZE];
                let scale = f32::from_le_bytes(scale);
                let found = scale * (f32::from(rounded.codes[index]) - ZERO_CODE);
                // A scale that f16 rounded down makes the largest weights a little smaller.
                assert!((found - stored).abs() <= 0.57 * scale, "{dtype} {index}: {found} for {stored}");
            }
        }
    }

    #[test]
    fn rows_that_do_not_divide_into_groups_stay_as_they_are() {
        let shape = [1, 80];
        let view = TensorView { name: "w", dtype: Dtype::F32, shape: &shape, bytes: &[0; 320] };
        assert!(EightBitMatrix::round(&view).is_none());
    }
}
