//! Where a sampling value comes from: the request, else the server, else the model's own recommendation, else ours.

use linnet_models::GenerationDefaults;
use linnet_runtime::SamplingParameters;

/// The temperature of a request that names none, on a server and a model that name none either. OpenAI's clients expect
/// sampled answers; 0.7 keeps small models on their subject better than OpenAI's own 1.0.
pub const BUILT_IN_TEMPERATURE: f32 = 0.7;

/// Sampling values that may be set or left open at one level of precedence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOverrides {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// The share of probability kept, 0 to 1.
    pub top_p: Option<f32>,
    /// How many tokens are kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Drops tokens below this share of the most probable one's probability.
    pub min_p: Option<f32>,
    /// The chance, per step, that XTC applies.
    pub xtc_probability: Option<f32>,
    /// The probability above which XTC drops tokens.
    pub xtc_threshold: Option<f32>,
    /// 1 is off.
    pub repetition_penalty: Option<f32>,
    /// How many tokens the repetition penalty looks back; 0 is all.
    pub repetition_context_size: Option<usize>,
    /// 0 is off.
    pub presence_penalty: Option<f32>,
    /// How many tokens the presence penalty looks back; 0 is all.
    pub presence_context_size: Option<usize>,
    /// 0 is off.
    pub frequency_penalty: Option<f32>,
    /// How many tokens the frequency penalty looks back; 0 is all.
    pub frequency_context_size: Option<usize>,
}

impl From<&GenerationDefaults> for SamplingOverrides {
    /// What a model's `generation_config.json` recommends. One that says not to sample recommends greedy decoding,
    /// whatever temperature stands beside it.
    fn from(defaults: &GenerationDefaults) -> Self {
        let is_greedy = defaults.do_sample == Some(false);
        Self {
            temperature: if is_greedy { Some(0.0) } else { defaults.temperature },
            top_p: defaults.top_p,
            top_k: defaults.top_k.and_then(|k| usize::try_from(k).ok()),
            min_p: defaults.min_p,
            repetition_penalty: defaults.repetition_penalty,
            ..Self::default()
        }
    }
}

impl SamplingOverrides {
    /// These values where set, else those of `lower`.
    #[must_use]
    pub fn or(&self, lower: &Self) -> Self {
        Self {
            temperature: self.temperature.or(lower.temperature),
            top_p: self.top_p.or(lower.top_p),
            top_k: self.top_k.or(lower.top_k),
            min_p: self.min_p.or(lower.min_p),
            xtc_probability: self.xtc_probability.or(lower.xtc_probability),
            xtc_threshold: self.xtc_threshold.or(lower.xtc_threshold),
            repetition_penalty: self.repetition_penalty.or(lower.repetition_penalty),
            repetition_context_size: self.repetition_context_size.or(lower.repetition_context_size),
            presence_penalty: self.presence_penalty.or(lower.presence_penalty),
            presence_context_size: self.presence_context_size.or(lower.presence_context_size),
            frequency_penalty: self.frequency_penalty.or(lower.frequency_penalty),
            frequency_context_size: self.frequency_context_size.or(lower.frequency_context_size),
        }
    }

    /// The parameters of a generation, with what is still open filled by the built-in values.
    #[must_use]
    pub fn resolve(&self, logit_bias: Vec<(u32, f32)>, seed: Option<u64>) -> SamplingParameters {
        let neutral = SamplingParameters::default();
        // OpenAI's `top_p: 0` means the narrowest nucleus, one token; the sampler reads 0 as "off".
        let is_narrowest = self.top_p == Some(0.0);
        SamplingParameters {
            temperature: self.temperature.unwrap_or(BUILT_IN_TEMPERATURE),
            top_p: self.top_p.filter(|_| !is_narrowest).unwrap_or(neutral.top_p),
            top_k: if is_narrowest { 1 } else { self.top_k.unwrap_or(neutral.top_k) },
            min_p: self.min_p.unwrap_or(neutral.min_p),
            xtc_probability: self.xtc_probability.unwrap_or(neutral.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(neutral.xtc_threshold),
            repetition_penalty: self.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            repetition_window: self.repetition_context_size.unwrap_or(neutral.repetition_window),
            presence_penalty: self.presence_penalty.unwrap_or(neutral.presence_penalty),
            presence_window: self.presence_context_size.unwrap_or(neutral.presence_window),
            frequency_penalty: self.frequency_penalty.unwrap_or(neutral.frequency_penalty),
            frequency_window: self.frequency_context_size.unwrap_or(neutral.frequency_window),
            logit_bias,
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_stands_above_the_server_and_the_server_above_the_model() {
        let request = SamplingOverrides { temperature: Some(0.1), ..SamplingOverrides::default() };
        let server = SamplingOverrides { temperature: Some(0.2), top_p: Some(0.2), ..SamplingOverrides::default() };
        let model = SamplingOverrides {
            temperature: Some(0.3),
            top_p: Some(0.3),
            top_k: Some(3),
            ..SamplingOverrides::default()
        };
        let resolved = request.or(&server).or(&model).resolve(Vec::new(), None);
        assert_eq!((resolved.temperature, resolved.top_p, resolved.top_k, resolved.min_p), (0.1, 0.2, 3, 0.0));
    }

    #[test]
    fn with_nothing_said_anywhere_the_built_in_values_stand() {
        let resolved = SamplingOverrides::default().resolve(Vec::new(), None);
        let expected = SamplingParameters { temperature: BUILT_IN_TEMPERATURE, ..SamplingParameters::default() };
        assert_eq!(resolved, expected);
    }

    #[test]
    fn a_model_that_says_not_to_sample_is_greedy() {
        let defaults = GenerationDefaults {
            do_sample: Some(false),
            temperature: Some(0.6),
            top_k: Some(20),
            ..GenerationDefaults::default()
        };
        assert_eq!(SamplingOverrides::from(&defaults).temperature, Some(0.0));
        let defaults = GenerationDefaults { do_sample: Some(true), ..defaults };
        let overrides = SamplingOverrides::from(&defaults);
        assert_eq!((overrides.temperature, overrides.top_k, overrides.min_p), (Some(0.6), Some(20), None));
    }

    #[test]
    fn a_nucleus_of_nothing_is_one_token_and_not_all_of_them() {
        let request = SamplingOverrides { top_p: Some(0.0), top_k: Some(50), ..SamplingOverrides::default() };
        let resolved = request.resolve(Vec::new(), None);
        assert_eq!((resolved.top_p, resolved.top_k), (1.0, 1));
    }
}
