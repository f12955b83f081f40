//! MLX's affine quantization: the one way in which quantized weights are stored.
//!
//! A row is cut into groups; each group has a scale and a bias, and an element is `q * scale + bias` with an unsigned
//! `q` of `bits` bits. Elements are packed little end first: element `i` of a row starts at bit `i * bits` of the row's
//! bit stream, which is what MLX's uint32 words hold for every width.

use serde::{Deserialize, Serialize};

/// Widths of a quantized element, in bits.
pub(crate) const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
/// Sizes of a group, in elements.
pub(crate) const GROUP_SIZES: [u32; 3] = [32, 64, 128];

/// A kind of affine quantization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Affine {
    /// Bits per element: 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Elements that share a scale and a bias: 32, 64 or 128.
    pub group_size: u32,
}

impl Default for Affine {
    /// What mlx-lm converts to when nothing else is said: 4 bits in groups of 64.
    fn default() -> Self {
        Affine { bits: 4, group_size: 64 }
    }
}

impl std::fmt::Display for Affine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}-bit, group {}", self.bits, self.group_size)
    }
}

impl Affine {
    /// Whether the engine has kernels for this kind.
    pub fn is_supported(self) -> bool {
        BITS.contains(&self.bits) && GROUP_SIZES.contains(&self.group_size)
    }

    /// Bytes that a row of `columns` elements takes when packed; `columns` is a multiple of the group size.
    pub fn packed_row_bytes(self, columns: usize) -> usize {
        columns * self.bits as usize / 8
    }

    /// Largest quantized value, which is the number of steps between the ends of a group.
    pub fn maximum(self) -> u32 {
        (1 << self.bits) - 1
    }

    /// The scale and the bias that MLX's quantizer gives a group (`affine_quantize` in MLX 0.32.2): the end of the
    /// range with the larger magnitude is the edge, and the scale is bent so that zero falls on a step.
    pub fn scale_and_bias(self, group: &[f32]) -> (f32, f32) {
        const SMALLEST_SCALE: f32 = 1e-7;
        let (mut minimum, mut maximum) = (f32::INFINITY, f32::NEG_INFINITY);
        for &value in group {
            maximum = if maximum < value { value } else { maximum };
            minimum = if value < minimum { value } else { minimum };
        }
        let low_edge = minimum.abs() > maximum.abs();
        let magnitude = ((maximum - minimum) / self.maximum() as f32).max(SMALLEST_SCALE);
        let scale = if low_edge { magnitude } else { -magnitude };
        let edge = if low_edge { minimum } else { maximum };
        let steps = (edge / scale).round_ties_even();
        if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) }
    }

    /// The quantized values of a group for a given scale and bias.
    pub fn quantize_group(self, group: &[f32], scale: f32, bias: f32, quantized: &mut [u8]) {
        let maximum = self.maximum() as f32;
        for (value, slot) in group.iter().zip(quantized) {
            // The cast is exact: the value lies between 0 and 255 and is whole.
            *slot = ((value - bias) / scale).round_ties_even().max(0.0).min(maximum) as u8;
        }
    }

    /// Packs the quantized values of whole groups into `packed`, which must be [`Affine::packed_row_bytes`] long.
    pub fn pack(self, quantized: &[u8], packed: &mut [u8]) {
        match self.bits {
            8 => packed.copy_from_slice(quantized),
            4 => {
                for (byte, pair) in packed.iter_mut().zip(quantized.chunks_exact(2)) {
                    *byte = pair[0] | (pair[1] << 4);
                }
            }
            _ => {
                let (mut pending, mut pending_bits) = (0u32, 0u32);
                let mut bytes = packed.iter_mut();
                for &value in quantized {
                    pending |= u32::from(value) << pending_bits;
                    pending_bits += self.bits;
                    while pending_bits >= 8 {
                        if let Some(byte) = bytes.next() {
                            *byte = (pending & 0xff) as u8;
                        }
                        pending >>= 8;
                        pending_bits -= 8;
                    }
                }
            }
        }
    }

    /// Unpacks elements; the opposite of [`Affine::pack`].
    pub fn unpack(self, packed: &[u8], quantized: &mut [u8]) {
        let (mut pending, mut pending_bits) = (0u32, 0u32);
        let mut bytes = packed.iter();
        for slot in quantized {
            while pending_bits < self.bits {
                pending |= u32::from(bytes.next().copied().unwrap_or(0)) << pending_bits;
                pending_bits += 8;
            }
            *slot = (pending & self.maximum()) as u8;
            pending >>= self.bits;
            pending_bits -= self.bits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{read_dense, write_scale};
    use crate::weights::Dtype;

    #[test]
    fn packing_is_undone_by_unpacking_for_every_width() {
        for bits in BITS {
            let affine = Affine { bits, group_size: 32 };
            let values: Vec<u8> = (0..96u32).map(|i| ((i * 37 + 11) % (affine.maximum() + 1)) as u8).collect();
            let mut packed = vec![0; affine.packed_row_bytes(values.len())];
            affine.pack(&values, &mut packed);
            let mut back = vec![0; values.len()];
            affine.unpack(&packed, &mut back);
            assert_eq!(values, back, "{bits} bits");
        }
    }

    #[test]
    fn element_i_starts_at_bit_i_times_bits() {
        for bits in BITS {
            let affine = Affine { bits, group_size: 32 };
            for element in 0..32 {
                let mut values = [0u8; 32];
                values[element] = 1;
                let mut packed = vec![0; affine.packed_row_bytes(32)];
                affine.pack(&values, &mut packed);
                let bit = element * bits as usize;
                assert_eq!(packed[bit / 8], 1 << (bit % 8), "{bits} bits, element {element}");
                assert_eq!(packed.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            }
        }
    }

    /// The fixture is made by `tests/fixtures/make_affine.py` with MLX 0.32.2.
    #[test]
    fn quantizing_gives_the_very_bits_that_mlx_gives() {
        let fixture = include_bytes!("../tests/fixtures/affine.safetensors");
        let fixture = safetensors::SafeTensors::deserialize(fixture).unwrap();
        let data = |name: &str| fixture.tensor(name).unwrap().data().to_vec();
        for (type_name, dtype) in [("f32", Dtype::F32), ("f16", Dtype::F16), ("bf16", Dtype::Bf16)] {
            let bytes = data(&format!("{type_name}.input"));
            let mut values = vec![0f32; bytes.len() / dtype.size() as usize];
            read_dense(dtype, &bytes, &mut values);
            for bits in BITS {
                for group_size in GROUP_SIZES {
                    let affine = Affine { bits, group_size };
                    let name = format!("{type_name}.{bits}.{group_size}");
                    let (mut weight, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
                    for group in values.chunks_exact(group_size as usize) {
                        let mut quantized = vec![0; group.len()];
                        let (scale, bias) = affine.scale_and_bias(group);
                        affine.quantize_group(group, scale, bias, &mut quantized);
                        let mut packed = vec![0; affine.packed_row_bytes(group.len())];
                        affine.pack(&quantized, &mut packed);
                        weight.extend(packed);
                        for (number, bytes) in [(scale, &mut scales), (bias, &mut biases)] {
                            let mut slot = [0; 4];
                            write_scale(dtype, number, &mut slot);
                            bytes.extend_from_slice(&slot[..dtype.size() as usize]);
                        }
                    }
                    assert_eq!(scales, data(&format!("{name}.scales")), "{name} scales");
                    assert_eq!(biases, data(&format!("{name}.biases")), "{name} biases");
                    assert_eq!(weight, data(&format!("{name}.weight")), "{name} weight");
                }
            }
        }
    }

    #[test]
    fn a_group_of_equal_values_survives() {
        let affine = Affine::default();
        let (scale, bias) = affine.scale_and_bias(&[0.75; 64]);
        let mut quantized = [0; 64];
        affine.quantize_group(&[0.75; 64], scale, bias, &mut quantized);
        for q in quantized {
            assert!((f32::from(q) * scale + bias - 0.75).abs() < 1e-6);
        }
    }
}
