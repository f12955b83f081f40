//! Top-p: keep the nucleus (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019).
//!
//! As in mlx-lm 0.32.2: a token is kept as long as the tokens more probable than it hold less than the share `top_p` of
//! all probability, and tokens exactly as probable as the last one kept are kept with it.

use super::{Scratch, candidate::Candidate, exponential};

/// Slices of this length are sorted instead of halved further.
const SORTED: usize = 32;

/// Buckets of [`nucleus_least_logit`]: few enough for the fastest cache, many enough for one to hold few tokens.
const BUCKETS: usize = 512;

/// Whether this value drops anything; 0 and 1 keep all.
pub(super) fn narrows(top_p: f32) -> bool {
    top_p > 0.0 && top_p < 1.0
}

/// A logit below which no token can be in the nucleus.
///
/// Of n tokens, those each below a share (1 - top_p) / n together hold less than 1 - top_p; so the others, all more
/// probable, hold more than top_p, and the nucleus ends among them.
pub(super) fn least_logit(tokens: usize, maximum: f32, total: f64, top_p: f32) -> f32 {
    // The margin is far above the rounding of the sums.
    const MARGIN: f64 = 1e-3;
    let share = (1.0 - f64::from(top_p)) / tokens as f64;
    (f64::from(maximum) + (share * total).ln() - MARGIN) as f32
}

/// The least logit of the nucleus, found in linear time.
///
/// The tokens above [`least_logit`] are dealt into buckets of equal width, the most probable first, of which only the
/// probability is noted; only the bucket in which `top_p` is reached is looked at token by token.
pub(super) fn nucleus_least_logit(logits: &[f32], maximum: f32, top_p: f32, scratch: &mut Scratch) -> f32 {
    let Scratch { weights, candidates } = scratch;
    weights.resize(logits.len(), 0.0);
    let total: f64 = logits
        .chunks(exponential::BLOCK)
        .zip(weights.chunks_mut(exponential::BLOCK))
        .map(|(block, weights)| f64::from(exponential::write_block(block, maximum, 1.0, f32::NEG_INFINITY, weights)))
        .sum();
    let least = least_logit(logits.len(), maximum, total, top_p);
    let scale = BUCKETS as f32 / (maximum - least);
    // The last bucket takes all that is below, too: asking first whether a token is would cost more.
    let bucket = |logit: f32| rounded((maximum - logit) * scale).min(BUCKETS);
    let mut masses = [0.0f64; BUCKETS + 1];
    for (&logit, &weight) in logits.iter().zip(weights.iter()) {
        masses[bucket(logit)] += f64::from(weight);
    }
    let target = f64::from(top_p) * total;
    let mut above = 0.0;
    for (index, mass) in masses.iter().enumerate() {
        if above + mass >= target {
            candidates.clear();
            let members = logits.iter().zip(weights.iter()).enumerate();
            candidates.extend(
                members
                    .filter(|(_, (logit, _))| **logit >= least && bucket(**logit) == index)
                    .map(|(token, (&logit, &weight))| Candidate { token: token as u32, logit, weight }),
            );
            return last_logit(candidates, target - above);
        }
        above += mass;
    }
    least
}

/// A number from 0 to 2^22 rounded to an integer; a larger one gives a larger integer. Adding 2^23 leaves the integer in
/// the low bits, which is much faster than `as`: that minds numbers out of range.
fn rounded(value: f32) -> usize {
    const SHIFT: f32 = 8_388_608.0;
    ((value + SHIFT).to_bits() - SHIFT.to_bits()) as usize
}

/// Keeps the nucleus. The candidates must hold every token more probable than the last of them; `total` is the sum of
/// the weights of the whole vocabulary.
pub(super) fn apply(candidates: &mut Vec<Candidate>, total: f64, top_p: f32) {
    let last = last_logit(candidates, f64::from(top_p) * total);
    candidates.retain(|candidate| candidate.logit >= last);
}

/// The logit at which the sum of weights from the top reaches `target`. Halves the candidates by rank and goes on with
/// the half in which that happens, so it takes linear time.
fn last_logit(candidates: &mut [Candidate], target: f64) -> f32 {
    let mut slice = candidates;
    let mut above = 0.0;
    while slice.len() > SORTED {
        let middle = slice.len() / 2;
        slice.select_nth_unstable_by(middle, Candidate::rank);
        let (upper, lower) = slice.split_at_mut(middle);
        let mass: f64 = upper.iter().map(|candidate| f64::from(candidate.weight)).sum();
        if above + mass >= target {
            slice = upper;
        } else {
            above += mass;
            slice = lower;
        }
    }
    slice.sort_unstable_by(Candidate::rank);
    let mut last = f32::NEG_INFINITY;
    for candidate in slice {
        above += f64::from(candidate.weight);
        last = candidate.logit;
        if above >= target {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::samplers::{candidate, exponential};

    #[test]
    fn the_nucleus_equals_that_of_a_full_sort() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(13);
        for round in 0..300 {
            let length = random.random_range(1..3000);
            let spread = [0.5, 4.0, 12.0][round % 3];
            let logits: Vec<f32> = (0..length).map(|_| random.random::<f32>() * spread).collect();
            let top_p = random.random_range(0.01..0.999f32);
            let maximum = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total = exponential::sum(&logits, maximum);
            let mut sorted = Vec::new();
            candidate::collect(&logits, maximum, f32::NEG_INFINITY, &mut sorted);
            sorted.sort_unstable_by(Candidate::rank);
            let mut above = 0.0;
            let nucleus = sorted
                .iter()
                .take_while(|candidate| {
                    let kept = above < f64::from(top_p) * total;
                    above += f64::from(candidate.weight);
                    kept
                })
                .count();
            let mut found = Vec::new();
            candidate::collect(&logits, maximum, least_logit(length, maximum, total, top_p), &mut found);
            apply(&mut found, total, top_p);
            let least = nucleus_least_logit(&logits, maximum, top_p, &mut Scratch::default());
            let bucketed = logits.iter().filter(|&&logit| logit >= least).count();
            // Summing in another order may move the border by the rounding of one token.
            for found in [found.len(), bucketed] {
                assert!(found.abs_diff(nucleus) <= 1, "{found} is not {nucleus} at {top_p} of {length}");
            }
        }
    }

    #[test]
    fn the_most_probable_token_always_stays_and_ties_stay_together() {
        let logits = [1.0, 2.0, 2.0, 0.0];
        let mut candidates = Vec::new();
        candidate::collect(&logits, 2.0, f32::NEG_INFINITY, &mut candidates);
        apply(&mut candidates, exponential::sum(&logits, 2.0), 1e-9);
        let mut tokens: Vec<u32> = candidates.iter().map(|candidate| candidate.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [1, 2]);
        assert_eq!(nucleus_least_logit(&logits, 2.0, 1e-9, &mut Scratch::default()), 2.0);
        // All equal: no width to deal into buckets, and all are tied.
        assert_eq!(nucleus_least_logit(&[1.0; 100], 1.0, 0.5, &mut Scratch::default()), 1.0);
        assert_eq!(nucleus_least_logit(&[1.0, f32::NEG_INFINITY], 1.0, 0.5, &mut Scratch::default()), 1.0);
    }
}
