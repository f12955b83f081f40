//! The exponential function over a whole vocabulary, in a form that compilers vectorise.

/// Values per partial sum. Sums of this many are exact enough in f32 lanes; the partial sums are added in f64.
pub(super) const BLOCK: usize = 512;
const LANES: usize = 8;

/// Below this e^x counts as 0: it is less than the smallest normal f32 over a full vocabulary.
const LEAST: f32 = -87.0;

/// e^x for x at most 0; 0 below -87. Relative error below 2e-7.
///
/// x = n ln 2 + r with |r| at most ln 2 / 2, ln 2 taken in two parts (Cody and Waite, 1980); e^r by its Taylor polynomial
/// of degree 7, whose next term is below 6e-9; 2^n by its exponent bits.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits; conversions by `as` vectorise badly.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > LEAST { x } else { LEAST };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut polynomial = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        polynomial = polynomial * r + coefficient;
    }
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x < LEAST { 0.0 } else { polynomial * power }
}

/// The sum of exp(logit - maximum).
pub(super) fn sum(logits: &[f32], maximum: f32) -> f64 {
    let block_sum = |block: &[f32]| {
        let mut sums = [0.0f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                sums[lane] += exp(chunk[lane] - maximum);
            }
        }
        for (lane, logit) in rest.iter().enumerate() {
            sums[lane] += exp(logit - maximum);
        }
        f64::from(sums.iter().sum::<f32>())
    };
    logits.chunks(BLOCK).map(block_sum).sum()
}

/// Writes exp((logit - maximum) * scale) for one block, 0 for logits below `least`, and returns their sum.
pub(super) fn write_block(block: &[f32], maximum: f32, scale: f32, least: f32, weights: &mut [f32]) -> f32 {
    let weight = |logit: f32| {
        let weight = exp((logit - maximum) * scale);
        if logit < least { 0.0 } else { weight }
    };
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    let (weight_chunks, rest_weights) = weights.as_chunks_mut::<LANES>();
    for (chunk, weights) in chunks.iter().zip(weight_chunks) {
        for lane in 0..LANES {
            weights[lane] = weight(chunk[lane]);
            sums[lane] += weights[lane];
        }
    }
    for ((lane, logit), place) in rest.iter().enumerate().zip(rest_weights) {
        *place = weight(*logit);
        sums[lane] += *place;
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_of_the_last_place_of_the_exact_value() {
        for step in 0..=870_000 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2e-7, "e^{x}: relative error {error:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn sums_agree_with_double_precision_for_every_tail() {
        for length in [1, 7, 8, 511, 512, 513, 49_152] {
            let logits: Vec<f32> = (0..length).map(|index| -((index * 7919 % 1000) as f32) / 60.0).collect();
            let exact: f64 = logits.iter().map(|&logit| (f64::from(logit) - 2.0).exp()).sum();
            let sum = sum(&logits, 2.0);
            assert!((sum - exact).abs() / exact < 1e-6, "{length}: {sum} is not {exact}");
        }
    }
}
