//! The probabilities that are reported: log-softmax after bias and penalties, before temperature and filters.

use super::{candidate::Candidate, exponential, top_k};
use crate::TokenLogprob;

/// The natural-log probability of `token` and of the `count` most probable tokens. `maximum` is the highest logit.
pub(super) fn report(
    logits: &[f32],
    maximum: f32,
    token: u32,
    count: usize,
    candidates: &mut Vec<Candidate>,
) -> TokenLogprob {
    let log_total = exponential::sum(logits, maximum).ln() as f32;
    // Subtracting the maximum first keeps the small difference exact.
    let logprob = |logit: f32| logit - maximum - log_total;
    let top = if count == 0 {
        Vec::new()
    } else {
        top_k::collect(logits, maximum, count, f32::NEG_INFINITY, candidates);
        candidates.sort_unstable_by(Candidate::rank);
        candidates.iter().map(|candidate| (candidate.token, logprob(candidate.logit))).collect()
    };
    TokenLogprob { token, logprob: logprob(logits[token as usize]), top }
}
