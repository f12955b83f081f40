//! Top-k: keep the k most probable tokens (Fan et al., "Hierarchical Neural Story Generation", 2018).

use super::candidate::Candidate;

/// The `count` most probable tokens whose logit is at least `least`, in no order; the lowest ids among equals.
///
/// One pass: at most a few times `count` candidates are kept, and whenever the room for them is full the k-th best so
/// far becomes the bound that all later tokens must pass.
pub(super) fn collect(logits: &[f32], maximum: f32, count: usize, least: f32, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    let room = count.saturating_mul(4).max(256);
    let mut bound = least;
    // A later token must be above the bound: of equals the lower id is there already.
    let mut is_full = false;
    for (token, &logit) in logits.iter().enumerate() {
        let passes = if is_full { logit > bound } else { logit >= bound && logit > f32::NEG_INFINITY };
        if passes {
            candidates.push(Candidate::new(token, logit, maximum));
            if candidates.len() >= room {
                apply(candidates, count);
                bound = candidates.iter().fold(f32::INFINITY, |bound, candidate| bound.min(candidate.logit));
                is_full = true;
            }
        }
    }
    apply(candidates, count);
}

/// Keeps the `count` most probable candidates, in no order.
pub(super) fn apply(candidates: &mut Vec<Candidate>, count: usize) {
    if (1..candidates.len()).contains(&count) {
        candidates.select_nth_unstable_by(count - 1, Candidate::rank);
        candidates.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_selection_equals_a_full_sort_with_ties_and_bounds() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(11);
        for round in 0..300 {
            let length = random.random_range(1..4000);
            // Few distinct values make many ties.
            let values = [5, 100, 100_000][round % 3];
            let logits: Vec<f32> = (0..length).map(|_| random.random_range(0..values) as f32 / 50.0).collect();
            let count = [1, 5, 40, 600][round % 4];
            let least = if round % 5 == 0 { 0.5 } else { f32::NEG_INFINITY };
            let mut found = Vec::new();
            collect(&logits, 0.0, count, least, &mut found);
            found.sort_unstable_by(Candidate::rank);
            let mut sorted = Vec::new();
            super::super::candidate::collect(&logits, 0.0, least, &mut sorted);
            sorted.sort_unstable_by(Candidate::rank);
            sorted.truncate(count);
            assert_eq!(found, sorted, "{count} of {length} with {values} values from {least}");
        }
    }
}
