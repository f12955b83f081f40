//! The draw: tokens in proportion to exp(logit / temperature).
//!
//! Tokens are walked in the order of their ids whichever way they were found, so the same seed draws the same token.

use super::{Candidate, exponential};

// A temperature so small that its inverse is infinite would make the highest logit 0 * infinity.
fn inverse(temperature: f32) -> f32 {
    (1.0 / temperature).min(f32::MAX)
}

/// Draws from the candidates, of which there must be one. `draw` is uniform in 0 to 1, 1 excluded.
pub(super) fn draw(candidates: &mut [Candidate], temperature: f32, draw: f64) -> u32 {
    candidates.sort_unstable_by_key(|candidate| candidate.token);
    let maximum = candidates.iter().fold(f32::NEG_INFINITY, |maximum, candidate| maximum.max(candidate.logit));
    let scale = inverse(temperature);
    let mut total = 0.0;
    for candidate in candidates.iter_mut() {
        candidate.weight = ((candidate.logit - maximum) * scale).exp();
        total += f64::from(candidate.weight);
    }
    let mut left = draw * total;
    let mut last = 0;
    for candidate in candidates.iter().filter(|candidate| candidate.weight > 0.0) {
        last = candidate.token;
        left -= f64::from(candidate.weight);
        if left < 0.0 {
            break;
        }
    }
    // Rounding may leave a trace at the end; it belongs to the last token.
    last
}

/// Draws from all tokens whose logit is at least `least`: one pass for the weights, then block by block to the drawn one.
pub(super) fn draw_from_all(
    logits: &[f32],
    maximum: f32,
    least: f32,
    temperature: f32,
    draw: f64,
    weights: &mut Vec<f32>,
) -> u32 {
    const BLOCK: usize = exponential::BLOCK;
    let scale = inverse(temperature);
    let blocks = logits.len().div_ceil(BLOCK);
    // The weights, followed by the sums of their blocks.
    weights.resize(logits.len() + blocks, 0.0);
    let (weights, sums) = weights.split_at_mut(logits.len());
    let mut total = 0.0;
    for ((block, weights), sum) in logits.chunks(BLOCK).zip(weights.chunks_mut(BLOCK)).zip(sums.iter_mut()) {
        *sum = exponential::write_block(block, maximum, scale, least, weights);
        total += f64::from(*sum);
    }
    let mut left = draw * total;
    let mut last = 0;
    for (index, (block, &sum)) in weights.chunks(BLOCK).zip(sums.iter()).enumerate() {
        if sum == 0.0 {
            continue;
        }
        // The last weight of the block stands for what rounding leaves of the block's sum.
        if left >= f64::from(sum) && sums[index + 1..].iter().any(|&sum| sum > 0.0) {
            left -= f64::from(sum);
            continue;
        }
        for (place, &weight) in block.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            last = index * BLOCK + place;
            left -= f64::from(weight);
            if left < 0.0 {
                break;
            }
        }
        break;
    }
    last as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(logits: &[f32]) -> Vec<Candidate> {
        logits.iter().enumerate().map(|(token, &logit)| Candidate::new(token, logit, 0.0)).collect()
    }

    #[test]
    fn drawing_from_all_and_from_candidates_agree() {
        let logits: Vec<f32> = (0..2000).map(|index| ((index * 7919 % 1009) as f32) / 100.0 - 10.0).collect();
        let maximum = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for least in [f32::NEG_INFINITY, -2.5] {
            let mut candidates = candidates(&logits);
            candidates.retain(|candidate| candidate.logit >= least);
            for step in 0..1000 {
                let number = f64::from(step) / 1000.0 + 3e-5;
                let all = draw_from_all(&logits, maximum, least, 0.7, number, &mut Vec::new());
                assert_eq!(draw(&mut candidates, 0.7, number), all, "draw {number}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_unit_interval_draw_the_first_and_the_last_possible_token() {
        let mut logits = vec![f32::NEG_INFINITY; 3000];
        logits[700] = 0.0;
        logits[1900] = 0.0;
        let almost_one = 1.0 - f64::EPSILON / 2.0;
        assert_eq!(draw_from_all(&logits, 0.0, f32::NEG_INFINITY, 1.0, 0.0, &mut Vec::new()), 700);
        assert_eq!(draw_from_all(&logits, 0.0, f32::NEG_INFINITY, 1.0, almost_one, &mut Vec::new()), 1900);
        assert_eq!(draw(&mut candidates(&logits), 1.0, 0.0), 700);
        assert_eq!(draw(&mut candidates(&logits), 1.0, almost_one), 1900);
    }

    #[test]
    fn the_smallest_temperature_is_greedy_and_not_nan() {
        let logits = [1.0, 3.0, 2.0];
        assert_eq!(draw_from_all(&logits, 3.0, f32::NEG_INFINITY, f32::from_bits(1), 0.5, &mut Vec::new()), 1);
        assert_eq!(draw(&mut candidates(&logits), f32::from_bits(1), 0.5), 1);
    }
}
