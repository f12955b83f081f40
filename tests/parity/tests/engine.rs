//! The whole engine on MLX: prompts in chunks, steps that run ahead, several requests at once. Its answers must be the
//! reference's tokens.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![cfg(all(feature = "mlx", target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;

use linnet_compute::mlx::{MlxBackend, MlxOptions};
use linnet_parity::{ExactFixture, Scenario};
use linnet_runtime::testing::byte_text;
use linnet_runtime::{
    BackendModel, BackendModelOptions, Engine, EngineOptions, Generation, GenerationEvent, GenerationRequest,
    SamplingParameters, StepModelError,
};

fn start(folder: &Path) -> Engine {
    let folder = folder.to_path_buf();
    let failed = |error: &dyn std::error::Error| StepModelError::Compute(error.to_string());
    let size = BackendModelOptions { kv_tokens: Some(8192), kv_bytes: None, sequences: 8 };
    // Tokens of these models have no text; bytes stand for it.
    Engine::start("exact", EngineOptions::default(), byte_text(), move || {
        let backend =
            MlxBackend::new(MlxOptions { composed: true, ..MlxOptions::default() }).map_err(|error| failed(&error))?;
        BackendModel::load(backend, &folder, size).map_err(|error| failed(&error))
    })
    .unwrap()
}

fn request(prompt: &[u32], tokens: usize, sampling: SamplingParameters) -> GenerationRequest {
    let (prompt, max_tokens) = (prompt.to_vec(), Some(tokens));
    // With probabilities asked for, every token leaves in an event of its own.
    GenerationRequest { prompt, max_tokens, sampling, ignore_eos: true, top_logprobs: Some(0), ..Default::default() }
}

fn read(mut generation: Generation) -> Vec<u32> {
    let mut answer = Vec::new();
    while let Some(event) = generation.blocking_next() {
        match event {
            GenerationEvent::Text { tokens, .. } => answer.extend(tokens),
            GenerationEvent::Failed(error) => panic!("{error}"),
            GenerationEvent::Prefill { .. } | GenerationEvent::Finished { .. } => {}
        }
    }
    answer
}

/// A scenario of one sequence with plain keys and values, and the tokens that the reference generated in it.
fn alone(fixture: &ExactFixture) -> Option<(&Scenario, Vec<u32>)> {
    let scenario = fixture.scenarios.iter().find(|scenario| !scenario.is_batch() && scenario.kv.is_none())?;
    let tokens: Vec<u32> = scenario.calls.iter().flat_map(|call| call.tokens.iter().copied()).collect();
    // A byte-level text has 256 tokens; what lies beyond cannot be shown.
    tokens.iter().all(|&token| token < 256).then_some((scenario, tokens))
}

#[test]
fn answers_are_the_reference_s_tokens_alone_and_in_company() {
    let fixtures = ExactFixture::all().unwrap();
    let mut tested = 0;
    for fixture in &fixtures {
        let Some((scenario, expected)) = alone(fixture) else { continue };
        if tested == 4 {
            break;
        }
        tested += 1;
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap();
        let engine = start(scratch.path());
        let prompt = &scenario.prompts[0];
        let greedy = || request(prompt, expected.len(), SamplingParameters::default());
        assert_eq!(read(engine.submit(greedy()).unwrap()), expected, "{}", fixture.name());
        // The same prompt three times, and one whose tokens are chosen on the host: their bits differ by the company's
        // padding, so only the beginning is sure to agree.
        let penalised = SamplingParameters { presence_penalty: 1e-6, ..Default::default() };
        let mut running: Vec<_> = (0..3).map(|_| engine.submit(greedy()).unwrap()).collect();
        running.push(engine.submit(request(prompt, expected.len(), penalised)).unwrap());
        for running in running {
            let found = read(running);
            assert_eq!(found.len(), expected.len());
            assert_eq!(found[..8], expected[..8], "{}", fixture.name());
        }
    }
    assert_eq!(tested, 4);
}

#[test]
fn a_seed_draws_the_same_answer_again_and_another_seed_another() {
    let fixtures = ExactFixture::all().unwrap();
    let (fixture, scenario) =
        fixtures.iter().find_map(|fixture| Some((fixture, alone(fixture)?.0))).expect("a fixture of one sequence");
    let scratch = tempfile::tempdir().unwrap();
    fixture.model.write(scratch.path()).unwrap();
    let engine = start(scratch.path());
    let draw = |seed, top_p, top_k| {
        let sampling = SamplingParameters { temperature: 1.2, top_p, top_k, seed: Some(seed), ..Default::default() };
        let request = GenerationRequest { top_logprobs: None, ..request(&scenario.prompts[0], 24, sampling) };
        let mut generation = engine.submit(request).unwrap();
        let mut answer = Vec::new();
        while let Some(event) = generation.blocking_next() {
            if let GenerationEvent::Text { tokens, .. } = event {
                answer.extend(tokens);
            }
        }
        answer
    };
    for (top_p, top_k) in [(1.0, 0), (0.9, 0), (1.0, 20)] {
        assert_eq!(draw(7, top_p, top_k), draw(7, top_p, top_k));
        assert_ne!(draw(7, top_p, top_k), draw(8, top_p, top_k));
    }
}
