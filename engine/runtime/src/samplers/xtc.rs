//! XTC, "exclude top choices": now and then drop the obvious tokens (p-e-w, text-generation-webui pull request 6335).

use super::candidate::Candidate;

/// Drops every candidate more probable than the least probable one above `threshold`, but for the `exempt` ones. The
/// probabilities are those among the candidates.
pub(super) fn apply(candidates: &mut Vec<Candidate>, threshold: f32, exempt: &[u32]) {
    let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
    let bound = f64::from(threshold) * total;
    let least_above = candidates
        .iter()
        .map(|candidate| candidate.weight)
        .filter(|&weight| f64::from(weight) > bound)
        .fold(f32::INFINITY, f32::min);
    candidates.retain(|candidate| candidate.weight <= least_above || exempt.contains(&candidate.token));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(probabilities: &[f32], threshold: f32, exempt: &[u32]) -> Vec<u32> {
        let mut candidates: Vec<Candidate> = probabilities
            .iter()
            .enumerate()
            .map(|(token, probability)| Candidate::new(token, probability.ln(), 0.0))
            .collect();
        apply(&mut candidates, threshold, exempt);
        candidates.iter().map(|candidate| candidate.token).collect()
    }

    #[test]
    fn all_above_the_threshold_but_the_least_of_them_go() {
        assert_eq!(kept(&[0.4, 0.05, 0.25, 0.3], 0.1, &[]), [1, 2]);
    }

    #[test]
    fn one_token_above_the_threshold_stays() {
        assert_eq!(kept(&[0.9, 0.06, 0.04], 0.1, &[]), [0, 1, 2]);
        assert_eq!(kept(&[0.4, 0.3, 0.3], 0.45, &[]), [0, 1, 2]);
    }

    #[test]
    fn exempt_tokens_stay() {
        assert_eq!(kept(&[0.4, 0.05, 0.25, 0.3], 0.1, &[0]), [0, 1, 2]);
    }
}
