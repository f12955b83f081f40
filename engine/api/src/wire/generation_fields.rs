//! The fields that chat and text completions share: sampling, limits, stop texts, streaming.

use linnet_runtime::GenerationRequest;

use crate::error::ApiError;
use crate::fields::{Field, Fields};
use crate::quote::shortened;
use crate::sampling::SamplingOverrides;
use crate::wire::request_context::RequestContext;

/// The most stop texts taken. OpenAI takes four; local tools send more.
const MOST_STOP_TEXTS: usize = 16;

/// The largest penalty window, far above any context.
const LARGEST_WINDOW: i64 = 1 << 31;

/// The shared fields, checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct GenerationFields {
    /// The model's name; `None` takes the server's default.
    pub(crate) model: Option<String>,
    /// The sampling values that the request names.
    pub(crate) sampling: SamplingOverrides,
    /// Added to single tokens' logits.
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Makes the draw repeatable.
    pub(crate) seed: Option<u64>,
    /// The most tokens to generate.
    pub(crate) max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub(crate) stop: Vec<String>,
    /// Whether the answer comes as server-sent events.
    pub(crate) stream: bool,
    /// Whether a stream ends with a chunk that tells the usage.
    pub(crate) include_usage: bool,
    /// Whether the answer goes on past its natural end, as benchmarks need it (llama.cpp, vLLM).
    pub(crate) ignore_eos: bool,
}

impl GenerationFields {
    /// What the engine is asked for: these fields, with `lower` where the request names no sampling value.
    pub(crate) fn into_request(
        self,
        prompt: Vec<u32>,
        top_logprobs: Option<usize>,
        lower: &SamplingOverrides,
        context: RequestContext,
    ) -> GenerationRequest {
        GenerationRequest {
            prompt,
            sampling: self.sampling.or(lower).resolve(self.logit_bias, self.seed),
            stop: self.stop,
            max_tokens: self.max_tokens,
            top_logprobs,
            priority: context.priority,
            session: context.session,
            ignore_eos: self.ignore_eos,
            ..GenerationRequest::default()
        }
    }

    /// Reads the shared fields; `limit_names` are the names of the token limit, the preferred one first.
    pub(crate) fn read(fields: &Fields<'_>, limit_names: &[&str]) -> Result<Self, ApiError> {
        refuse_many_choices(fields)?;
        Ok(Self {
            model: fields.optional_text("model")?.filter(|name| !name.is_empty()).map(str::to_owned),
            sampling: read_sampling(fields)?,
            logit_bias: read_logit_bias(fields)?,
            seed: fields.get("seed").map(|seed| seed.seed()).transpose()?,
            max_tokens: read_limit(fields, limit_names)?,
            stop: fields.get("stop").map(|stop| read_stop(&stop)).transpose()?.unwrap_or_default(),
            stream: fields.optional_flag("stream")?.unwrap_or(false),
            include_usage: match fields.get("stream_options") {
                Some(options) => options.object()?.optional_flag("include_usage")?.unwrap_or(false),
                None => false,
            },
            ignore_eos: fields.optional_flag("ignore_eos")?.unwrap_or(false),
        })
    }
}

fn refuse_many_choices(fields: &Fields<'_>) -> Result<(), ApiError> {
    for name in ["n", "best_of"] {
        let Some(field) = fields.get(name) else { continue };
        if field.integer(1..=i64::MAX)? != 1 {
            let problem = format!("this server gives one answer per request; set {name} to 1 or send several requests");
            return Err(field.unsupported(problem));
        }
    }
    Ok(())
}

fn read_limit(fields: &Fields<'_>, names: &[&str]) -> Result<Option<usize>, ApiError> {
    let mut limit = None;
    for name in names {
        let value = fields.optional_integer(name, 1..=i64::MAX)?;
        limit = limit.or(value);
    }
    Ok(limit.and_then(|limit| usize::try_from(limit).ok()))
}

fn read_sampling(fields: &Fields<'_>) -> Result<SamplingOverrides, ApiError> {
    let window = |name: &str| -> Result<Option<usize>, ApiError> {
        let window = fields.optional_integer(name, 0..=LARGEST_WINDOW)?;
        Ok(window.and_then(|window| usize::try_from(window).ok()))
    };
    Ok(SamplingOverrides {
        temperature: fields.optional_number("temperature", 0.0..=2.0)?,
        top_p: fields.optional_number("top_p", 0.0..=1.0)?,
        // Some servers write "off" as -1.
        top_k: fields.optional_integer("top_k", -1..=LARGEST_WINDOW)?.map(|k| usize::try_from(k).unwrap_or(0)),
        min_p: fields.optional_number("min_p", 0.0..=1.0)?,
        xtc_probability: fields.optional_number("xtc_probability", 0.0..=1.0)?,
        xtc_threshold: fields.optional_number("xtc_threshold", 0.0..=0.5)?,
        repetition_penalty: fields.optional_number("repetition_penalty", 0.01..=10.0)?,
        repetition_context_size: window("repetition_context_size")?,
        presence_penalty: fields.optional_number("presence_penalty", -2.0..=2.0)?,
        presence_context_size: window("presence_context_size")?,
        frequency_penalty: fields.optional_number("frequency_penalty", -2.0..=2.0)?,
        frequency_context_size: window("frequency_context_size")?,
    })
}

fn read_logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(field) = fields.get("logit_bias") else { return Ok(Vec::new()) };
    let object = field.object()?;
    object
        .entries()
        .map(|(token, bias)| match token.parse::<u32>() {
            Ok(token) => Ok((token, bias.number(-100.0..=100.0)?)),
            Err(_) => Err(ApiError::InvalidField {
                field: bias.path().to_owned(),
                problem: format!("expected token ids as keys, such as \"42\", got {:?}", shortened(token)),
            }),
        })
        .collect()
}

fn read_stop(stop: &Field<'_>) -> Result<Vec<String>, ApiError> {
    const EXPECTED: &str = "a string or a list of strings";
    let texts = if stop.value.is_string() { vec![stop.clone()] } else { stop.list(EXPECTED)? };
    if texts.len() > MOST_STOP_TEXTS {
        return Err(stop.expected(&format!("at most {MOST_STOP_TEXTS} stop texts")));
    }
    texts
        .iter()
        .map(|text| match text.text()? {
            "" => Err(text.expected("a stop text of at least one character (an empty one would end every answer)")),
            text => Ok(text.to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(body: &Value) -> Result<GenerationFields, ApiError> {
        GenerationFields::read(&Fields::root(body)?, &["max_completion_tokens", "max_tokens"])
    }

    #[test]
    fn every_field_is_read() {
        let fields = read(&json!({
            "model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": -1,
            "xtc_probability": 0.5, "xtc_threshold": 0.2, "repetition_penalty": 1.1, "repetition_context_size": 64,
            "presence_penalty": -1, "presence_context_size": 0, "frequency_penalty": 2, "frequency_context_size": 9,
            "logit_bias": {"42": -100}, "max_tokens": 7, "stop": "END", "stream": true,
            "stream_options": {"include_usage": true}, "ignore_eos": true, "n": 1, "user": "u", "metadata": {}, "something_new": [1],
        }));
        let expected = GenerationFields {
            model: Some("m".into()),
            sampling: SamplingOverrides {
                temperature: Some(0.5),
                top_p: Some(0.9),
                top_k: Some(40),
                min_p: Some(0.05),
                xtc_probability: Some(0.5),
                xtc_threshold: Some(0.2),
                repetition_penalty: Some(1.1),
                repetition_context_size: Some(64),
                presence_penalty: Some(-1.0),
                presence_context_size: Some(0),
                frequency_penalty: Some(2.0),
                frequency_context_size: Some(9),
            },
            logit_bias: vec![(42, -100.0)],
            seed: Some(u64::MAX),
            max_tokens: Some(7),
            stop: vec!["END".into()],
            stream: true,
            include_usage: true,
            ignore_eos: true,
        };
        assert_eq!(fields.unwrap(), expected);
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let body = json!({"temperature": null, "stop": null, "n": null, "max_tokens": null, "stream": null,
            "logit_bias": null, "stream_options": null, "model": null, "seed": null});
        assert_eq!(read(&body).unwrap(), GenerationFields::default());
    }

    #[test]
    fn the_newer_limit_wins_and_both_are_checked() {
        assert_eq!(read(&json!({"max_tokens": 5, "max_completion_tokens": 6})).unwrap().max_tokens, Some(6));
        assert!(read(&json!({"max_tokens": 0, "max_completion_tokens": 6})).is_err());
    }

    #[test]
    fn a_seed_may_use_all_of_64_bits_with_a_sign_or_without() {
        for (seed, expected) in [(json!(-1), u64::MAX), (json!(u64::MAX), u64::MAX), (json!(1_u64 << 63), 1 << 63)] {
            assert_eq!(read(&json!({ "seed": seed })).unwrap().seed, Some(expected));
        }
        for seed in [json!(1e30), json!(0.5), json!("1")] {
            assert!(read(&json!({ "seed": seed })).is_err(), "{seed}");
        }
    }

    #[test]
    fn two_choices_asked_for_are_refused_and_not_halved() {
        let error = read(&json!({"n": 2})).unwrap_err();
        assert!(error.to_string().starts_with("`n`: this server gives one answer"), "{error}");
    }
}
