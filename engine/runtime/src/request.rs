//! What a caller asks of the engine.

/// One generation: a prompt as token ids and how to go on from it.
#[derive(Debug, Clone, Default)]
pub struct GenerationRequest {
    /// The whole prompt, special tokens included. Must hold at least one token.
    pub prompt: Vec<u32>,
    /// How the next token is chosen.
    pub sampling: SamplingParameters,
    /// Texts that end the generation when they appear in the output; they are not part of it.
    pub stop: Vec<String>,
    /// The most tokens to generate. `None`: as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// How many alternatives to report for each token; `None` reports no probabilities at all, `Some(0)` only the
    /// chosen token's.
    pub top_logprobs: Option<usize>,
    /// Go on past end-of-sequence tokens. For benchmarks, which need an exact number of tokens.
    pub ignore_eos: bool,
    /// Emit special tokens as text instead of hiding them.
    pub show_special_tokens: bool,
}

/// How the next token is chosen from the logits. Every default leaves the distribution as the model gave it.
///
/// The order of application is that of mlx-lm: logit bias and penalties, then temperature with top-k, top-p, min-p and
/// XTC on the normalised distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParameters {
    /// 0 is greedy: the highest logit, the lowest id on ties.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probabilities reach this sum; 1 (or 0) keeps all.
    pub top_p: f32,
    /// Keep the `top_k` most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Drop tokens less probable than this share of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// The chance, per step, that XTC applies.
    pub xtc_probability: f32,
    /// XTC drops all tokens above this probability but the least probable of them.
    pub xtc_threshold: f32,
    /// Divides positive and multiplies negative logits of tokens in the window; 1 is off.
    pub repetition_penalty: f32,
    /// How many of the latest tokens (prompt included) the repetition penalty looks at; 0 is all.
    pub repetition_window: usize,
    /// Subtracted once from every token that occurs in the window; 0 is off.
    pub presence_penalty: f32,
    /// The window of the presence penalty; 0 is all.
    pub presence_window: usize,
    /// Subtracted once per occurrence in the window; 0 is off.
    pub frequency_penalty: f32,
    /// The window of the frequency penalty; 0 is all.
    pub frequency_window: usize,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes the draw repeatable. `None` takes a seed from the system.
    pub seed: Option<u64>,
}

impl Default for SamplingParameters {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repetition_penalty: 1.0,
            repetition_window: 20,
            presence_penalty: 0.0,
            presence_window: 20,
            frequency_penalty: 0.0,
            frequency_window: 20,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}
