//! Top-p: keep the nucleus (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019).
//!
//! As in mlx-lm 0.32.2: a token is kept as long as the tokens more probable than it hold less than the share `top_p` of
//! all probability, and tokens exactly as probable as the last one kept are kept with it.

use super::candidate::Candidate;

/// Slices of this length are sorted instead of halved further.
const SORTED: usize = 32;

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
            // Summing in another order may move the border by the rounding of one token.
            assert!(found.len().abs_diff(nucleus) <= 1, "{} is not {nucleus} at {top_p} of {length}", found.len());
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
    }
}
