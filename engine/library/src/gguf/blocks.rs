//! ggml's block formats, seen as what they all are: unsigned integers with a scale and a bias per group.
//!
//! Sources: the block structures and `dequantize_row_*` of ggml's `ggml-common.h` and `ggml-quants.c`. For every type
//! `q * scale + bias`, computed in f32, has the value of ggml's own formula: the products are exact (an 11-bit f16
//! significand times at most a 7-bit scale times at most an 8-bit integer fits into 24 bits), so only the one addition
//! can round, and ggml rounds the same one.

use half::f16;

use super::tensor_type::TensorType;

/// Weights of a super-block of the K-quants.
pub(crate) const SUPER_BLOCK: usize = 256;

/// Decodes one block into its integers (one per weight) and the scale and bias of each of its groups.
///
/// `block` has the type's block length; the slices have room for one block (see `TensorType::layout`). Dense types
/// have no blocks: they leave the slices as they are.
pub(crate) fn decode(kind: TensorType, block: &[u8], quantized: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    match kind {
        TensorType::Q4_0 => {
            let scale = half_at(block, 0);
            nibbles(&block[2..18], quantized);
            (scales[0], biases[0]) = (scale, -8.0 * scale);
        }
        TensorType::Q4_1 => {
            nibbles(&block[4..20], quantized);
            (scales[0], biases[0]) = (half_at(block, 0), half_at(block, 2));
        }
        TensorType::Q5_0 => {
            let scale = half_at(block, 0);
            nibbles(&block[6..22], quantized);
            fifth_bits(&block[2..6], quantized);
            (scales[0], biases[0]) = (scale, -16.0 * scale);
        }
        TensorType::Q5_1 => {
            nibbles(&block[8..24], quantized);
            fifth_bits(&block[4..8], quantized);
            (scales[0], biases[0]) = (half_at(block, 0), half_at(block, 2));
        }
        TensorType::Q8_0 => {
            let scale = half_at(block, 0);
            for (slot, &byte) in quantized.iter_mut().zip(&block[2..34]) {
                // From two's complement to an offset of 128.
                *slot = byte ^ 0x80;
            }
            (scales[0], biases[0]) = (scale, -128.0 * scale);
        }
        TensorType::Q2K => decode_q2_k(block, quantized, scales, biases),
        TensorType::Q3K => decode_q3_k(block, quantized, scales, biases),
        TensorType::Q4K => decode_q4_k(block, quantized, scales, biases),
        TensorType::Q5K => decode_q5_k(block, quantized, scales, biases),
        TensorType::Q6K => decode_q6_k(block, quantized, scales, biases),
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 | TensorType::Other(_) => {}
    }
}

/// Dequantizes one block into f32.
pub(crate) fn dequantize(kind: TensorType, block: &[u8], group: usize, values: &mut [f32]) {
    let mut quantized = [0u8; SUPER_BLOCK];
    let (mut scales, mut biases) = ([0f32; 16], [0f32; 16]);
    decode(kind, block, &mut quantized, &mut scales, &mut biases);
    for (index, value) in values.iter_mut().enumerate() {
        *value = f32::from(quantized[index]) * scales[index / group] + biases[index / group];
    }
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// 16 bytes hold 32 weights: the first sixteen in the low halves, the others in the high halves.
fn nibbles(bytes: &[u8], quantized: &mut [u8]) {
    for (index, &byte) in bytes.iter().enumerate() {
        quantized[index] = byte & 15;
        quantized[index + 16] = byte >> 4;
    }
}

/// Bit `i` of a little-endian word is the fifth bit of weight `i`.
fn fifth_bits(bytes: &[u8], quantized: &mut [u8]) {
    for (index, slot) in quantized.iter_mut().take(32).enumerate() {
        *slot |= ((bytes[index / 8] >> (index % 8)) & 1) << 4;
    }
}

/// 16 scale bytes (low half scale, high half minimum), 64 bytes of 2-bit weights, d, dmin.
fn decode_q2_k(block: &[u8], quantized: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
    for group in 0..16 {
        scales[group] = scale * f32::from(block[group] & 15);
        biases[group] = -(minimum * f32::from(block[group] >> 4));
    }
    two_bits(&block[16..80], quantized);
}

/// Each half of 128 weights lies in 32 bytes: weights 32k..32k+32 in the bit pairs 2k.
fn two_bits(bytes: &[u8], quantized: &mut [u8]) {
    for (index, slot) in quantized.iter_mut().take(SUPER_BLOCK).enumerate() {
        let (half, within) = (index / 128, index % 128);
        *slot = (bytes[32 * half + within % 32] >> (2 * (within / 32))) & 3;
    }
}

/// 32 bytes of third bits, 64 bytes of low bit pairs, 12 bytes of 6-bit scales, d.
fn decode_q3_k(block: &[u8], quantized: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let scale = half_at(block, 108);
    let packed = &block[96..108];
    for group in 0..16 {
        let low = (packed[group % 8] >> (4 * (group / 8))) & 15;
        let high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
        scales[group] = scale * (f32::from(low | (high << 4)) - 32.0);
        // Weights are stored with an offset of 4.
        biases[group] = -4.0 * scales[group];
    }
    two_bits(&block[32..96], quantized);
    for (index, slot) in quantized.iter_mut().take(SUPER_BLOCK).enumerate() {
        *slot |= ((block[index % 32] >> (index / 32)) & 1) << 2;
    }
}

/// The 6-bit scale and minimum of a group of 32, out of the 12 bytes that Q4_K and Q5_K share.
fn six_bit_pair(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        (
            (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4),
            (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4),
        )
    };
    (f32::from(scale), f32::from(minimum))
}

/// The scales and biases of Q4_K and Q5_K: products of the block's f16 pair with 6-bit integers.
fn product_scales(block: &[u8], scales: &mut [f32], biases: &mut [f32]) {
    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
    for group in 0..8 {
        let (scale_step, minimum_step) = six_bit_pair(&block[4..16], group);
        scales[group] = scale * scale_step;
        biases[group] = -(minimum * minimum_step);
    }
}

/// Runs of 64 weights lie in 32 bytes: the first 32 in the low halves, the others in the high halves.
fn nibble_runs(bytes: &[u8], quantized: &mut [u8]) {
    for (index, slot) in quantized.iter_mut().take(SUPER_BLOCK).enumerate() {
        let byte = bytes[32 * (index / 64) + index % 32];
        *slot = if index % 64 < 32 { byte & 15 } else { byte >> 4 };
    }
}

/// d, dmin, 12 bytes of scales and minima, 128 bytes of 4-bit weights.
fn decode_q4_k(block: &[u8], quantized: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    product_scales(block, scales, biases);
    nibble_runs(&block[16..144], quantized);
}

/// d, dmin, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes of low bits.
fn decode_q5_k(block: &[u8], quantized: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    product_scales(block, scales, biases);
    nibble_runs(&block[48..176], quantized);
    for (index, slot) in quantized.iter_mut().take(SUPER_BLOCK).enumerate() {
        *slot |= ((block[16 + index % 32] >> (index / 32)) & 1) << 4;
    }
}

/// 128 bytes of low bits, 64 bytes of high bit pairs, 16 signed scales, d.
fn decode_q6_k(block: &[u8], quantized: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
    let scale = half_at(block, 208);
    for group in 0..16 {
        scales[group] = scale * f32::from(i8::from_le_bytes([block[192 + group]]));
        // Weights are stored with an offset of 32.
        biases[group] = -32.0 * scales[group];
    }
    for (index, slot) in quantized.iter_mut().take(SUPER_BLOCK).enumerate() {
        let (half, within) = (index / 128, index % 128);
        let low = block[64 * half + within % 64] >> (4 * (within / 64));
        let high = block[128 + 32 * half + within % 32] >> (2 * (within / 32));
        *slot = (low & 15) | ((high & 3) << 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::dequantize_row;

    const KINDS: [TensorType; 10] = [
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::Q2K,
        TensorType::Q3K,
        TensorType::Q4K,
        TensorType::Q5K,
        TensorType::Q6K,
    ];

    /// The fixture is made by `tests/fixtures/make_blocks.py` with the Python package gguf.
    #[test]
    fn every_block_type_has_the_values_of_the_reference() {
        let fixture = include_bytes!("../../tests/fixtures/blocks.safetensors");
        let fixture = safetensors::SafeTensors::deserialize(fixture).unwrap();
        for kind in KINDS {
            let blocks = fixture.tensor(&format!("{}.blocks", kind.name())).unwrap();
            let expected = fixture.tensor(&format!("{}.values", kind.name())).unwrap();
            let expected: Vec<f32> =
                expected.data().chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
            let mut values = vec![f32::NAN; expected.len()];
            dequantize_row(kind, blocks.data(), &mut values);
            for (index, (value, expected)) in values.iter().zip(&expected).enumerate() {
                assert!(value == expected, "{} weight {index}: {value}, expected {expected}", kind.name());
            }
        }
    }

    #[test]
    fn integers_stay_within_the_width_that_they_are_stored_in() {
        use crate::gguf::tensor_type::Mapping;
        for kind in KINDS {
            let layout = kind.layout().unwrap();
            for fill in [0x00, 0xff, 0x5a] {
                let block = vec![fill; layout.bytes];
                let mut quantized = [0; SUPER_BLOCK];
                decode(kind, &block, &mut quantized, &mut [0.0; 16], &mut [0.0; 16]);
                if let Some(Mapping::Exact(affine)) = kind.mapping() {
                    assert!(quantized.iter().all(|q| u32::from(*q) <= affine.maximum()), "{}", kind.name());
                }
            }
        }
    }
}
