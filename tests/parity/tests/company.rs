//! The whole engine on `cpu`: what a request gets does not depend on who else is served. Its answer must be the reference's
//! tokens while others join, end, are dropped and have their prompts cut in pieces beside it.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::time::Duration;

use linnet_compute::cpu::{CpuBackend, CpuOptions};
use linnet_parity::Fixture;
use linnet_runtime::{
    BackendModel, BackendModelOptions, Detokenizer, Engine, EngineOptions, EngineText, Generation, GenerationEvent,
    GenerationRequest, Priority, StepModelError, TokenLogprob,
};

/// How far log-probabilities of the fast path may lie apart alone and in company, as far as tokens agree. Other numbers of
/// rows take other kernels, which add in another order.
const FAST_TOLERANCE: f32 = 2e-3;

/// Tokens of these models have no text.
struct Silent;

impl Detokenizer for Silent {
    fn push(&mut self, _: u32, _: &mut String) -> Result<(), StepModelError> {
        Ok(())
    }

    fn finish(&mut self, _: &mut String) {}
}

fn start(fixture: &Fixture, exact: bool) -> Engine {
    let folder = fixture.folder.clone();
    let text = EngineText::new(|_| Box::new(Silent), Vec::new());
    // Every prompt beside a stream is cut as small as prompts are ever cut.
    let options = EngineOptions { max_stall: Duration::from_nanos(1), ..EngineOptions::default() };
    Engine::start("company", options, text, move || {
        let backend = CpuBackend::new(CpuOptions { threads: 2, exact });
        let size = BackendModelOptions { kv_tokens: Some(4096), kv_bytes: None, sequences: 8 };
        BackendModel::load(backend, &folder, size).map_err(|error| StepModelError::Compute(error.to_string()))
    })
    .unwrap()
}

fn request(prompt: &[u32], tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.to_vec(),
        max_tokens: Some(tokens),
        ignore_eos: true,
        // With probabilities asked for, every token leaves in an event of its own.
        top_logprobs: Some(0),
        ..Default::default()
    }
}

/// The next event's tokens; `None` at the end.
fn next(generation: &mut Generation) -> Option<Vec<TokenLogprob>> {
    loop {
        match generation.blocking_next()? {
            GenerationEvent::Text { logprobs, .. } => return Some(logprobs),
            GenerationEvent::Failed(error) => panic!("{error}"),
            GenerationEvent::Prefill { .. } | GenerationEvent::Finished { .. } => {}
        }
    }
}

fn read(mut generation: Generation) -> Vec<TokenLogprob> {
    std::iter::from_fn(|| next(&mut generation)).flatten().collect()
}

fn tokens(answer: &[TokenLogprob]) -> Vec<u32> {
    answer.iter().map(|entry| entry.token).collect()
}

/// Answers of the fixture's prompt: alone, then several that begin at different moments among others that come and go.
fn answers(fixture: &Fixture, exact: bool) -> Vec<Vec<TokenLogprob>> {
    let engine = start(fixture, exact);
    let length = fixture.tokens.len();
    let subject = || engine.submit(request(&fixture.prompt, length)).unwrap();
    let mut found = vec![read(subject())];
    let mut running = Vec::new();
    let mut dropped = Vec::new();
    for wave in 0..3 {
        // A stream of its own, so that there is somebody to wait for.
        let mut other = engine.submit(request(&fixture.prompt[wave + 1..], 5 + 7 * wave)).unwrap();
        next(&mut other);
        running.push(subject());
        let long: Vec<u32> = fixture.prompt.iter().copied().cycle().take(fixture.prompt.len() + 60 + wave).collect();
        let background = GenerationRequest { priority: Priority::Background, ..request(&long, 4) };
        dropped.push(engine.submit(background).unwrap());
        if wave == 1 {
            dropped.remove(0);
        }
        drop(read(other));
    }
    found.extend(running.into_iter().map(read));
    found
}

fn fixtures() -> Vec<Fixture> {
    let names = ["affine-4bit-g64", "affine-8bit-g32", "dense-f32", "multi-query", "sliding-window", "rope-llama3"];
    let fixtures: Vec<Fixture> = Fixture::family("llama")
        .unwrap()
        .into_iter()
        .filter(|fixture| names.contains(&fixture.name().as_str()))
        .collect();
    assert_eq!(fixtures.len(), names.len());
    fixtures
}

#[test]
fn on_the_exact_path_company_changes_no_token() {
    for fixture in fixtures() {
        for (number, answer) in answers(&fixture, true).iter().enumerate() {
            assert_eq!(tokens(answer), fixture.tokens, "{}, answer {number}", fixture.name());
        }
    }
}

#[test]
fn on_the_fast_path_company_changes_probabilities_within_the_tolerance() {
    for fixture in fixtures() {
        let mut answers = answers(&fixture, false);
        let alone = answers.remove(0);
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!(answer.len(), alone.len());
            // Behind the first token that turned, the texts are different ones.
            let same = alone.iter().zip(answer).take_while(|(alone, answer)| alone.token == answer.token);
            for (position, (alone, answer)) in same.enumerate() {
                let distance = (alone.logprob - answer.logprob).abs();
                assert!(distance <= FAST_TOLERANCE, "{}, answer {number}, {position}: {distance}", fixture.name());
            }
        }
    }
}
