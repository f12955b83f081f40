//! Rotary position embeddings: the variants of mlx-lm 0.32.2 (`mlx_lm/models/rope_utils.py`) as plain data.

/// A rotary embedding over the first `dims` elements of each head.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// How many elements of a head are rotated; even, at most the head's size.
    pub dims: usize,
    /// Rotate neighbouring pairs (true) or halves (false).
    pub traditional: bool,
    /// The base of the frequencies, `rope_theta`.
    pub base: f64,
    /// How the frequencies depart from plain powers of the base.
    pub scaling: RopeScaling,
}

/// The kinds of `rope_scaling`.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Plain powers of the base.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// NTK-aware: beyond `max_position` the base grows with the length of the sequence.
    Dynamic {
        /// The growth.
        factor: f64,
        /// The length up to which nothing changes.
        max_position: usize,
    },
    /// Llama 3's smooth interpolation between wavelength bands.
    Llama3 {
        /// The stretch of long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low` are stretched fully.
        low_frequency_factor: f64,
        /// Wavelengths below `original / high` are left alone.
        high_frequency_factor: f64,
        /// The context the model was first trained with.
        original_max_position: f64,
    },
    /// YaRN.
    Yarn {
        /// The stretch.
        factor: f64,
        /// The context the model was first trained with.
        original_max_position: f64,
        /// Rotations above which a dimension is left alone.
        beta_fast: f64,
        /// Rotations below which a dimension is stretched fully.
        beta_slow: f64,
        /// The weight of the attention scale.
        mscale: f64,
        /// The weight of its counterpart.
        mscale_all_dim: f64,
    },
    /// Phi's per-dimension factors ("su", "longrope"); the long ones, as mlx-lm applies them always.
    LongRope {
        /// A factor for each pair, or one for all.
        long_factor: Vec<f64>,
        /// The context the model is used with.
        max_position: f64,
        /// The context the model was first trained with.
        original_max_position: f64,
    },
    /// Only `rotated_dims` of the dimensions turn; exponents still run over all.
    Proportional {
        /// How many turn.
        rotated_dims: usize,
        /// The stretch.
        factor: f64,
    },
}

impl RopeSpec {
    /// The wavelength divisors `f` of a sequence of `length` tokens: position `p` turns pair `i` by `p / f[i]`
    /// radians. Computed in double precision; `dims / 2` values.
    #[must_use]
    pub fn frequencies(&self, length: usize) -> Vec<f64> {
        let dims = self.dims as f64;
        let power = |base: f64, pair: usize| base.powf((2 * pair) as f64 / dims);
        let base = self.base;
        let pairs = 0..self.dims / 2;
        match &self.scaling {
            RopeScaling::None => pairs.map(|pair| power(base, pair)).collect(),
            RopeScaling::Linear { factor } => pairs.map(|pair| power(base, pair) * *factor).collect(),
            RopeScaling::Dynamic { .. } => {
                let grown = self.base_for(length);
                pairs.map(|pair| power(grown, pair)).collect()
            }
            RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_max_position } => {
                let (factor, low, high) = (*factor, *low_frequency_factor, *high_frequency_factor);
                let original = *original_max_position;
                pairs
                    .map(|pair| {
                        let frequency = power(base, pair);
                        let wavelength = std::f64::consts::TAU * frequency;
                        if wavelength > original / low {
                            frequency * factor
                        } else if wavelength > original / high {
                            let smooth = (original / wavelength - low) / (high - low);
                            frequency / ((1.0 - smooth) / factor + smooth)
                        } else {
                            frequency
                        }
                    })
                    .collect()
            }
            RopeScaling::Yarn { factor, original_max_position, beta_fast, beta_slow, .. } => {
                let factor = *factor;
                let (low, high) = yarn_range(dims, base, *original_max_position, *beta_fast, *beta_slow);
                pairs
                    .map(|pair| {
                        let extrapolated = power(base, pair);
                        let interpolated = factor * extrapolated;
                        let kept = 1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        interpolated * extrapolated / (interpolated * kept + extrapolated * (1.0 - kept))
                    })
                    .collect()
            }
            RopeScaling::LongRope { long_factor, .. } => pairs
                .map(|pair| {
                    let factor = long_factor.get(pair).or(long_factor.first()).copied().unwrap_or(1.0);
                    power(base, pair) * factor
                })
                .collect(),
            RopeScaling::Proportional { rotated_dims, factor } => pairs
                .map(|pair| if pair < rotated_dims.div_ceil(2) { power(base, pair) * *factor } else { f64::INFINITY })
                .collect(),
        }
    }

    /// The base of the frequencies in a sequence of `length` tokens.
    #[must_use]
    pub fn base_for(&self, length: usize) -> f64 {
        let RopeScaling::Dynamic { factor, max_position } = self.scaling else { return self.base };
        let (dims, limit) = (self.dims as f64, max_position as f64);
        let length = (length as f64).max(limit);
        self.base * (factor * length / limit - (factor - 1.0)).powf(dims / (dims - 2.0))
    }

    /// The pairs between which YaRN blends, as [`RopeScaling::Yarn`] gives them; `None` for other kinds.
    #[must_use]
    pub fn yarn_range(&self) -> Option<(f64, f64)> {
        let RopeScaling::Yarn { original_max_position, beta_fast, beta_slow, .. } = self.scaling else { return None };
        Some(yarn_range(self.dims as f64, self.base, original_max_position, beta_fast, beta_slow))
    }

    /// What the rotated part is multiplied with before it is rotated.
    #[must_use]
    pub fn input_scale(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn { factor, mscale, mscale_all_dim, .. } => {
                let scale = |weight: f64| if *factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
                scale(*mscale) / scale(*mscale_all_dim)
            }
            RopeScaling::LongRope { max_position, original_max_position, .. } => {
                let factor = max_position / original_max_position;
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original_max_position.ln()).sqrt() }
            }
            _ => 1.0,
        }
    }

    /// Whether the frequencies change with the length of the sequence.
    #[must_use]
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { .. })
    }
}

/// The pairs between which YaRN's ramp runs (arXiv 2309.00071, section 3.2).
fn yarn_range(dims: f64, base: f64, original: f64, beta_fast: f64, beta_slow: f64) -> (f64, f64) {
    let dimension = |rotations: f64| dims * (original / (rotations * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
    let low = dimension(beta_fast).floor().max(0.0);
    let high = dimension(beta_slow).ceil().min(dims - 1.0);
    // A ramp of no length would divide by zero; the reference widens it the same way.
    if low == high { (low, high + 0.001) } else { (low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { dims: 8, traditional: false, base: 10_000.0, scaling }
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let frequencies = spec(RopeScaling::None).frequencies(1);
        for (found, expected) in frequencies.iter().zip([1.0, 10.0, 100.0, 1000.0]) {
            assert!((found - expected).abs() < 1e-9 * expected);
        }
    }

    #[test]
    fn dynamic_scaling_changes_nothing_within_the_trained_length() {
        let dynamic = spec(RopeScaling::Dynamic { factor: 2.0, max_position: 64 });
        assert_eq!(dynamic.frequencies(64), spec(RopeScaling::None).frequencies(1));
        assert!(dynamic.frequencies(128)[3] > 1000.0);
        assert!(dynamic.depends_on_length());
    }

    #[test]
    fn proportional_scaling_leaves_the_rest_still() {
        let frequencies = spec(RopeScaling::Proportional { rotated_dims: 4, factor: 1.0 }).frequencies(1);
        assert!(frequencies[1].is_finite() && frequencies[2].is_infinite() && frequencies[3].is_infinite());
        // An odd number begins a pair, as in the reference, whose exponents are 0, 2 and 4 here.
        let frequencies = spec(RopeScaling::Proportional { rotated_dims: 5, factor: 1.0 }).frequencies(1);
        assert!(frequencies[2].is_finite() && frequencies[3].is_infinite());
    }
}
