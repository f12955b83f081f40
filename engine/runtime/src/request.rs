//! What a caller asks of the engine.

use crate::SubmitError;

/// One generation: a prompt as token ids and how to go on from it.
#[derive(Debug, Clone, Default)]
pub struct GenerationRequest {
    /// The whole prompt, special tokens included. Must hold at least one token.
    pub prompt: Vec<u32>,
    /// How the next token is chosen.
    pub sampling: SamplingParameters,
    /// Texts that end the generation when they appear in the output; they are not part of it.
    pub stop: Vec<String>,
    /// The most tokens to generate. `None`: the engine's default, or as many as the context has room for.
    pub max_tokens: Option<usize>,
    /// How many alternatives to report for each token; `None` reports no probabilities at all, `Some(0)` only the
    /// chosen token's.
    pub top_logprobs: Option<usize>,
    /// Go on past end-of-sequence tokens. For benchmarks, which need an exact number of tokens.
    pub ignore_eos: bool,
    /// Emit special tokens as text instead of hiding them.
    pub show_special_tokens: bool,
    /// Who waits for the answer.
    pub priority: Priority,
    /// Names a conversation. A request whose prompt continues the newest checkpoint of its session finds that at once; any
    /// other finds the longest kept prefix of its prompt. The prompt must be whole all the same, and names isolate nothing.
    pub session: Option<String>,
}

/// Who waits for an answer, which decides who goes first where not all can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Somebody looks at it.
    #[default]
    Interactive,
    /// Nobody does: a title, an index, a nightly job. It runs after what is interactive, but never waits for ever.
    Background,
}

/// How the next token is chosen from the logits. Every default leaves the distribution as the model gave it.
///
/// The order of application is that of mlx-lm 0.32.2 (`sample_utils.py`): logit bias, then the repetition, presence and
/// frequency penalties; on the distribution this gives at temperature 1, top-p, min-p, XTC and top-k, each on what the
/// one before left; temperature last, on the tokens that are left.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParameters {
    /// 0 is greedy: the highest logit, the lowest id on ties.
    pub temperature: f32,
    /// Keep the smallest set of most probable tokens whose probabilities reach this sum, and those as probable as the
    /// last of them; 1 (or 0) keeps all.
    pub top_p: f32,
    /// Keep the `top_k` most probable tokens, the lowest ids among equals; 0 keeps all.
    pub top_k: usize,
    /// Drop tokens less probable than this share of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// The chance, per step, that XTC applies.
    pub xtc_probability: f32,
    /// XTC drops all tokens above this probability but the least probable of them. At most 0.5.
    pub xtc_threshold: f32,
    /// Divides positive and multiplies negative logits of tokens in the window, once each; 1 (or 0) is off.
    pub repetition_penalty: f32,
    /// How many of the latest tokens, prompt included, the repetition penalty looks at; 0 is all.
    pub repetition_window: usize,
    /// Subtracted once from every token that occurs in the window; 0 is off.
    pub presence_penalty: f32,
    /// The window of the presence penalty; 0 is all.
    pub presence_window: usize,
    /// Subtracted once per occurrence in the window; 0 is off.
    pub frequency_penalty: f32,
    /// The window of the frequency penalty; 0 is all.
    pub frequency_window: usize,
    /// Added to the logits of single tokens; entries for the same token add up.
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

impl GenerationRequest {
    /// Checks all that can be known before the request runs, against a model of `vocabulary` tokens.
    ///
    /// # Errors
    /// Names the first field whose value cannot be used.
    pub fn validate(&self, vocabulary: usize) -> Result<(), SubmitError> {
        if self.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        known_tokens("prompt", self.prompt.iter().copied(), vocabulary)?;
        self.sampling.validate(vocabulary)?;
        if self.stop.iter().any(String::is_empty) {
            return Err(invalid("stop", &"an empty text", "texts of at least one character"));
        }
        let stop_bytes = self.stop.iter().map(String::len).sum::<usize>();
        if stop_bytes > MAX_STOP_BYTES {
            let value = format!("{stop_bytes} bytes long in all");
            return Err(invalid("stop", &value, format!("at most {MAX_STOP_BYTES} bytes")));
        }
        match self.top_logprobs {
            Some(count) if count > vocabulary => {
                Err(invalid("top_logprobs", &count, format!("at most {vocabulary}, the model's number of tokens")))
            }
            _ => Ok(()),
        }
    }

    /// The most tokens to generate in a context of `context` tokens, if the engine's default is `default`.
    ///
    /// # Errors
    /// [`SubmitError::ContextOverflow`] when prompt and answer do not fit together.
    pub fn resolve_max_tokens(&self, context: usize, default: Option<usize>) -> Result<usize, SubmitError> {
        let prompt = self.prompt.len();
        let overflow = SubmitError::ContextOverflow { prompt, max_tokens: self.max_tokens, context };
        let room = context.checked_sub(prompt).ok_or_else(|| overflow.clone())?;
        match self.max_tokens {
            Some(max_tokens) if max_tokens <= room => Ok(max_tokens),
            Some(_) => Err(overflow),
            None if room == 0 => Err(overflow),
            None => Ok(default.map_or(room, |default| default.min(room))),
        }
    }
}

/// What all stop texts of a request may weigh together; real ones are a few words.
const MAX_STOP_BYTES: usize = 64 * 1024;

impl SamplingParameters {
    /// Checks the values against a model of `vocabulary` tokens.
    ///
    /// # Errors
    /// Names the first field whose value cannot be used.
    pub fn validate(&self, vocabulary: usize) -> Result<(), SubmitError> {
        let ranges = [
            ("temperature", self.temperature, f32::MAX),
            ("top_p", self.top_p, 1.0),
            ("min_p", self.min_p, 1.0),
            ("xtc_probability", self.xtc_probability, 1.0),
            ("xtc_threshold", self.xtc_threshold, 0.5),
            ("repetition_penalty", self.repetition_penalty, f32::MAX),
        ];
        for (name, value, largest) in ranges {
            if !(0.0..=largest).contains(&value) {
                let expected =
                    if largest == f32::MAX { "a number of at least 0".into() } else { format!("from 0 to {largest}") };
                return Err(invalid(name, &value, expected));
            }
        }
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if !value.is_finite() {
                return Err(invalid(name, &value, "a finite number"));
            }
        }
        known_tokens("logit_bias", self.logit_bias.iter().map(|&(token, _)| token), vocabulary)?;
        match self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            Some(&(token, bias)) => Err(invalid("logit_bias", &format!("{bias} for token {token}"), "a finite number")),
            None => Ok(()),
        }
    }
}

fn known_tokens(
    name: &'static str,
    mut tokens: impl Iterator<Item = u32>,
    vocabulary: usize,
) -> Result<(), SubmitError> {
    match tokens.find(|&token| token as usize >= vocabulary) {
        Some(token) => Err(SubmitError::TokenOutOfRange { name, token, vocabulary }),
        None => Ok(()),
    }
}

fn invalid(name: &'static str, value: &dyn std::fmt::Display, expected: impl Into<String>) -> SubmitError {
    SubmitError::InvalidParameter { name, value: value.to_string(), expected: expected.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt: usize, max_tokens: Option<usize>) -> GenerationRequest {
        GenerationRequest { prompt: vec![1; prompt], max_tokens, ..Default::default() }
    }

    #[test]
    fn context_overflow_names_both_figures() {
        let error = request(90, Some(20)).resolve_max_tokens(100, None).unwrap_err();
        assert_eq!(error, SubmitError::ContextOverflow { prompt: 90, max_tokens: Some(20), context: 100 });
        assert_eq!(
            error.to_string(),
            "the prompt's 90 tokens and the 20 tokens asked for make 110, but the context holds 100; shorten the prompt \
             or ask for at most 10 tokens"
        );
        let error = request(100, None).resolve_max_tokens(100, None).unwrap_err();
        assert!(error.to_string().contains("100 tokens leave no room"), "{error}");
        assert!(request(101, Some(0)).resolve_max_tokens(100, None).is_err());
        assert!(request(1, Some(usize::MAX)).resolve_max_tokens(100, None).is_err());
    }

    #[test]
    fn a_missing_limit_is_the_default_cut_to_the_room() {
        assert_eq!(request(90, None).resolve_max_tokens(100, None), Ok(10));
        assert_eq!(request(90, None).resolve_max_tokens(100, Some(4)), Ok(4));
        assert_eq!(request(90, None).resolve_max_tokens(100, Some(400)), Ok(10));
        assert_eq!(request(90, Some(10)).resolve_max_tokens(100, Some(4)), Ok(10));
        assert_eq!(request(100, Some(0)).resolve_max_tokens(100, None), Ok(0));
    }

    #[test]
    fn every_field_out_of_range_is_named() {
        type Change = fn(&mut GenerationRequest);
        let changes: [(&str, Change); 16] = [
            ("temperature", |r| r.sampling.temperature = -0.1),
            ("temperature", |r| r.sampling.temperature = f32::NAN),
            ("temperature", |r| r.sampling.temperature = f32::INFINITY),
            ("top_p", |r| r.sampling.top_p = 1.1),
            ("min_p", |r| r.sampling.min_p = -1.0),
            ("xtc_probability", |r| r.sampling.xtc_probability = 2.0),
            ("xtc_threshold", |r| r.sampling.xtc_threshold = 0.6),
            ("repetition_penalty", |r| r.sampling.repetition_penalty = -1.0),
            ("presence_penalty", |r| r.sampling.presence_penalty = f32::NAN),
            ("frequency_penalty", |r| r.sampling.frequency_penalty = f32::INFINITY),
            ("logit_bias", |r| r.sampling.logit_bias = vec![(0, f32::NAN)]),
            ("logit_bias", |r| r.sampling.logit_bias = vec![(10, 1.0)]),
            ("prompt", |r| r.prompt = vec![10]),
            ("stop", |r| r.stop = vec![String::new()]),
            ("stop", |r| r.stop = vec!["x".repeat(MAX_STOP_BYTES + 1)]),
            ("top_logprobs", |r| r.top_logprobs = Some(11)),
        ];
        assert_eq!(request(3, None).validate(10), Ok(()));
        for (field, change) in changes {
            let mut request = request(3, None);
            change(&mut request);
            let error = request.validate(10).unwrap_err();
            assert!(error.to_string().starts_with(&format!("`{field}`")), "{field}: {error}");
        }
        assert_eq!(request(0, None).validate(10), Err(SubmitError::EmptyPrompt));
    }
}
