//! A token that may be chosen.

use std::cmp::Ordering;

/// A token with its logit and its weight, which is its probability up to a common factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) token: u32,
    pub(super) logit: f32,
    /// exp(logit - maximum).
    pub(super) weight: f32,
}

impl Candidate {
    pub(super) fn new(token: usize, logit: f32, maximum: f32) -> Self {
        Self { token: token as u32, logit, weight: (logit - maximum).exp() }
    }

    /// Most probable first, the lower id on ties.
    pub(super) fn rank(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }
}

/// The tokens whose logit is at least `least`, by id. Tokens of logit minus infinity are impossible and never kept.
pub(super) fn collect(logits: &[f32], maximum: f32, least: f32, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    for (token, &logit) in logits.iter().enumerate() {
        if logit >= least && logit > f32::NEG_INFINITY {
            candidates.push(Candidate::new(token, logit, maximum));
        }
    }
}
