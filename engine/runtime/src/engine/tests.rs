//! The engine from outside, against a scripted model.

mod ahead;
mod complaints;
mod conversations;
mod faults;
mod lifetime;
mod prefixes;
mod results;
mod sharing;

use std::time::{Duration, Instant};

use crate::{
    Engine, EngineOptions, FinishReason, Generation, GenerationEvent, GenerationRequest, StepModelError, TokenLogprob,
    Usage,
    testing::{ScriptedModel, byte_text, byte_tokens},
};

fn start(model: ScriptedModel) -> Engine {
    start_with(model, EngineOptions::default())
}

fn start_with(model: ScriptedModel, options: EngineOptions) -> Engine {
    Engine::start("scripted", options, byte_text(), move || Ok(model)).unwrap()
}

fn request(prompt: &str) -> GenerationRequest {
    GenerationRequest { prompt: byte_tokens(prompt), ..Default::default() }
}

/// A generation read to its end.
#[derive(Debug, Default)]
struct Answer {
    pieces: Vec<String>,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    prefill: Vec<(usize, usize)>,
    finished: Option<(FinishReason, Usage)>,
    failed: Option<StepModelError>,
}

impl Answer {
    fn text(&self) -> String {
        self.pieces.concat()
    }

    fn reason(&self) -> FinishReason {
        self.finished.unwrap_or_else(|| panic!("not finished: {self:?}")).0
    }

    fn usage(&self) -> Usage {
        self.finished.unwrap_or_else(|| panic!("not finished: {self:?}")).1
    }
}

fn read(mut generation: Generation) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = generation.blocking_next() {
        assert!(answer.finished.is_none() && answer.failed.is_none(), "{event:?} after the end");
        match event {
            GenerationEvent::Prefill { done, total } => answer.prefill.push((done, total)),
            GenerationEvent::Text { text, tokens, logprobs } => {
                answer.pieces.push(text);
                answer.tokens.extend(tokens);
                answer.logprobs.extend(logprobs);
            }
            GenerationEvent::Finished { reason, usage } => answer.finished = Some((reason, usage)),
            GenerationEvent::Failed(error) => answer.failed = Some(error),
        }
    }
    assert!(answer.finished.is_some() || answer.failed.is_some(), "no last event");
    answer
}

fn answer(engine: &Engine, request: GenerationRequest) -> Answer {
    read(engine.submit(request).unwrap())
}

/// Reads until this many tokens of text came.
fn read_tokens(generation: &mut Generation, count: usize) {
    let mut seen = 0;
    while seen < count {
        match generation.blocking_next() {
            Some(GenerationEvent::Text { tokens, .. }) => seen += tokens.len(),
            Some(GenerationEvent::Prefill { .. }) => {}
            other => panic!("{other:?} after {seen} tokens"),
        }
    }
}

/// Waits for a condition and says how long it took.
fn wait_until(limit: Duration, what: &str, condition: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}
