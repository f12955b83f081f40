//! Logit bias: a request's own correction of single tokens.

/// Adds each bias to its token's logit. Tokens outside the vocabulary were refused when the request came in.
pub(super) fn apply(bias: &[(u32, f32)], logits: &mut [f32]) {
    for &(token, bias) in bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
}
