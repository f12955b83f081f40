//! Min-p: drop tokens less probable than a share of the most probable one (Nguyen et al., "Turning Up the Heat", 2024).

/// The least logit that is kept; no bound when off. Needs no normalisation: the share of probabilities is a difference of
/// logits.
pub(super) fn least_logit(maximum: f32, min_p: f32) -> f32 {
    if min_p > 0.0 { maximum + min_p.ln() } else { f32::NEG_INFINITY }
}
