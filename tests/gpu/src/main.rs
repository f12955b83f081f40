//! One arm of the comparison: Linnet's engine on MLX, driven by lines of JSON as `arm_mlx_lm.py` is.
//!
//! `linnet-arm MODEL_FOLDER` prints `{"ready": ...}` once loaded. For each `{"prompt": [...], "generate": N}` on standard
//! input it prints `{"tokens": [...], "first_seconds": ..., "rest_seconds": ...}`: the time to the first token, and from
//! it to the last, as a caller of the engine sees them.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use linnet_compute::mlx::{MlxBackend, MlxOptions};
use linnet_runtime::{
    BackendModel, BackendModelOptions, Detokenizer, Engine, EngineOptions, EngineText, GenerationEvent,
    GenerationRequest, SamplingParameters, StepModelError, Usage,
};
use serde::{Deserialize, Serialize};

/// Room for the longest request of the comparison.
const KV_TOKENS: usize = 8192;

#[derive(Deserialize)]
struct Request {
    prompt: Vec<u32>,
    generate: usize,
}

#[derive(Serialize)]
struct Answer {
    tokens: Vec<u32>,
    first_seconds: f64,
    rest_seconds: f64,
    /// The engine's own account, to tell its time from the caller's.
    engine_prefill_seconds: f64,
    engine_decode_seconds: f64,
}

/// A letter for each token: seeded models have no tokenizer, and events come with text.
struct Letters;

impl Detokenizer for Letters {
    fn push(&mut self, _token: u32, text: &mut String) -> Result<(), StepModelError> {
        text.push('a');
        Ok(())
    }

    fn finish(&mut self, _text: &mut String) {}
}

fn main() -> anyhow::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).context("usage: linnet-arm MODEL_FOLDER")?);
    let text = EngineText::new(|_| Box::new(Letters), Vec::new());
    let options = EngineOptions { max_concurrent: 1, ..EngineOptions::default() };
    let engine = Engine::start("comparison", options, text, move || {
        let failed = |error: &dyn std::fmt::Display| StepModelError::Compute(error.to_string());
        let backend = MlxBackend::new(MlxOptions::default()).map_err(|error| failed(&error))?;
        let room = BackendModelOptions { kv_tokens: Some(KV_TOKENS), kv_bytes: None, sequences: 1 };
        BackendModel::load(backend, &folder, room).map_err(|error| failed(&error))
    })?;
    let mut output = std::io::stdout().lock();
    writeln!(output, r#"{{"ready": "linnet {}"}}"#, env!("CARGO_PKG_VERSION"))?;
    output.flush()?;
    for line in std::io::stdin().lock().lines() {
        let answer = answer(&engine, serde_json::from_str(&line?)?)?;
        writeln!(output, "{}", serde_json::to_string(&answer)?)?;
        output.flush()?;
    }
    // CUDA's driver must not be unloaded under the engine's thread.
    engine.stop();
    Ok(())
}

fn answer(engine: &Engine, request: Request) -> anyhow::Result<Answer> {
    let begun = Instant::now();
    let mut generation = engine.submit(GenerationRequest {
        prompt: request.prompt,
        sampling: SamplingParameters { temperature: 0.0, ..SamplingParameters::default() },
        max_tokens: Some(request.generate),
        ignore_eos: true,
        ..GenerationRequest::default()
    })?;
    let mut all = Vec::with_capacity(request.generate);
    let (mut first, mut last) = (None, Duration::ZERO);
    loop {
        match generation.blocking_next() {
            Some(GenerationEvent::Text { tokens, .. }) => {
                last = begun.elapsed();
                first.get_or_insert(last);
                all.extend(tokens);
            }
            Some(GenerationEvent::Finished { usage, .. }) => {
                return Ok(account(all, first.unwrap_or(last), last, &usage));
            }
            Some(GenerationEvent::Failed(error)) => return Err(error.into()),
            Some(GenerationEvent::Prefill { .. }) => {}
            None => bail!("the engine ended in the middle of a request"),
        }
    }
}

fn account(tokens: Vec<u32>, first: Duration, last: Duration, usage: &Usage) -> Answer {
    Answer {
        tokens,
        first_seconds: first.as_secs_f64(),
        rest_seconds: (last - first).as_secs_f64(),
        engine_prefill_seconds: usage.prefill_seconds,
        engine_decode_seconds: usage.decode_seconds,
    }
}
