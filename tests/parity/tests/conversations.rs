//! What is kept of prompts and answers changes no answer, on real arithmetic: with memory, evictions, a disk and restarts.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use linnet_compute::cpu::{CpuBackend, CpuOptions};
use linnet_parity::Fixture;
use linnet_runtime::ssd::{SsdOptions, SsdTier};
use linnet_runtime::testing::byte_text;
use linnet_runtime::{
    BackendModel, BackendModelOptions, Engine, EngineOptions, Generation, GenerationEvent, GenerationRequest,
    StepModelError, Usage,
};

/// Numbers without end from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn tokens(&mut self, from: usize, to: usize) -> Vec<u32> {
        (0..from + self.below(to - from)).map(|_| self.below(250) as u32).collect()
    }
}

/// An answer: its tokens and their log-probabilities.
type Answer = (Vec<u32>, Vec<f32>, Usage);

fn read(mut generation: Generation) -> Answer {
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    loop {
        match generation.blocking_next().expect("an end") {
            GenerationEvent::Text { tokens: new, logprobs: their, .. } => {
                tokens.extend(new);
                logprobs.extend(their.iter().map(|logprob| logprob.logprob));
            }
            GenerationEvent::Failed(error) => panic!("{error}"),
            GenerationEvent::Prefill { .. } => {}
            GenerationEvent::Finished { usage, .. } => return (tokens, logprobs, usage),
        }
    }
}

fn request(prompt: &[u32], tokens: usize) -> GenerationRequest {
    let (prompt, max_tokens) = (prompt.to_vec(), Some(tokens));
    // With probabilities asked for, every token leaves in an event of its own.
    GenerationRequest { prompt, max_tokens, ignore_eos: true, top_logprobs: Some(0), ..Default::default() }
}

fn start_cpu(folder: &Path, kv_tokens: usize, cache_bytes: usize, disk: Option<&Path>) -> Engine {
    let folder = folder.to_path_buf();
    let size = BackendModelOptions { kv_tokens: Some(kv_tokens), kv_bytes: None, sequences: 8 };
    let options = EngineOptions { prefix_cache_bytes: cache_bytes, ..Default::default() };
    let disk = disk.map(|disk| Arc::new(SsdTier::open(SsdOptions::new(disk)).unwrap().0));
    Engine::start_with_disk("tiny", options, byte_text(), disk, move || {
        let backend = CpuBackend::new(CpuOptions { threads: 2, exact: true });
        BackendModel::load(backend, &folder, size).map_err(|error| StepModelError::Compute(error.to_string()))
    })
    .unwrap()
}

#[test]
fn two_hundred_conversations_on_the_exact_path_are_answered_as_cold_ones() {
    let fixtures = Fixture::family("llama").unwrap();
    let fixture = fixtures.iter().find(|fixture| fixture.name() == "affine-4bit-g64").unwrap();
    let cold = start_cpu(&fixture.folder, 4096, 0, None);
    let (mut asked, mut cached, mut restored, mut evicted) = (0, 0, 0, 0);
    for seed in 0..10 {
        let mut random = Random(seed);
        let disk = tempfile::tempdir().unwrap();
        // Room for two to four whole contexts, and less than that for what nobody uses.
        let (kv_tokens, cache) = (1024 + 64 * random.below(16), (4 + random.below(16)) * 64 * 1024);
        let start = || start_cpu(&fixture.folder, kv_tokens, cache, Some(disk.path()));
        let mut engine = start();
        let system = random.tokens(80, 150);
        let mut begun = 0;
        let mut running: Vec<Vec<u32>> = Vec::new();
        while begun < 20 || !running.is_empty() {
            while begun < 20 && running.len() < 4 {
                begun += 1;
                let branches = !running.is_empty() && random.below(4) == 0;
                running.push(if branches { running[0].clone() } else { system.clone() });
            }
            let mut streams = Vec::new();
            for (number, history) in running.iter_mut().enumerate() {
                if random.below(5) == 0 {
                    // An edit.
                    history.truncate(1 + random.below(history.len() - 1));
                }
                history.extend(random.tokens(4, 40));
                history.truncate(460);
                let session = (random.below(2) == 0).then(|| number.to_string());
                let request = GenerationRequest { session, ..request(history, 1 + random.below(12)) };
                streams.push((request.clone(), engine.submit(request).unwrap()));
            }
            let mut answers = Vec::new();
            for (request, stream) in streams {
                let (tokens, logprobs, usage) = read(stream);
                let (expected, expected_logprobs, _) = read(cold.submit(request).unwrap());
                assert_eq!(tokens, expected, "seed {seed}, {} of {} cached", usage.cached_tokens, usage.prompt_tokens);
                assert_eq!(logprobs, expected_logprobs, "the bits differ, seed {seed}, {} cached", usage.cached_tokens);
                cached += usage.cached_tokens;
                asked += 1;
                answers.push(tokens);
            }
            for (history, answer) in running.iter_mut().zip(answers) {
                history.extend(answer);
            }
            running.retain(|history| history.len() < 400 && random.below(4) > 0);
            if random.below(8) == 0 {
                let status = engine.cache_status();
                evicted += status.ram.evictions;
                restored += status.disk.unwrap().restores;
                engine.stop();
                engine = start();
            }
        }
        let status = engine.cache_status();
        evicted += status.ram.evictions;
        restored += status.disk.unwrap().restores;
    }
    assert!(cached > 50 * asked && restored > 20 && evicted > 100, "{asked} {cached} {restored} {evicted}");
}

#[cfg(all(feature = "mlx", target_os = "linux", target_arch = "x86_64"))]
#[test]
fn on_mlx_what_comes_from_the_disk_has_the_bits_of_what_stayed_in_memory() {
    use linnet_compute::mlx::{MlxBackend, MlxOptions};
    use linnet_parity::ExactFixture;
    let fixtures = ExactFixture::all().unwrap();
    for name in ["llama/dense-bf16", "llama/affine-4bit-g64-f16", "llama/sliding-window"] {
        let fixture = fixtures.iter().find(|fixture| fixture.name() == name).unwrap();
        let (scratch, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fixture.model.write(scratch.path()).unwrap();
        let start = || {
            let folder = scratch.path().to_path_buf();
            let size = BackendModelOptions { kv_tokens: Some(8192), kv_bytes: None, sequences: 8 };
            let tier = Arc::new(SsdTier::open(SsdOptions::new(disk.path())).unwrap().0);
            Engine::start_with_disk("exact", EngineOptions::default(), byte_text(), Some(tier), move || {
                let backend = MlxBackend::new(MlxOptions { composed: true, ..MlxOptions::default() });
                let load = |backend| BackendModel::load(backend, &folder, size).map_err(|error| error.to_string());
                let model = backend.map_err(|error| error.to_string()).and_then(load);
                model.map_err(StepModelError::Compute)
            })
            .unwrap()
        };
        let mut random = Random(7);
        let prompt: Vec<u32> = (0..300).map(|_| random.below(96) as u32).collect();
        let engine = start();
        // All that is kept of this one is a whole block.
        read(engine.submit(request(&prompt[..256], 1)).unwrap());
        let from_memory = read(engine.submit(request(&prompt, 40)).unwrap());
        assert_eq!(from_memory.2.cached_tokens, 256, "{name}");
        assert!(engine.flush_cache().durable);
        engine.stop();
        let engine = start();
        let from_disk = read(engine.submit(request(&prompt, 40)).unwrap());
        assert_eq!(from_disk.2.cached_tokens, 256, "{name}");
        assert_eq!((&from_disk.0, &from_disk.1), (&from_memory.0, &from_memory.1), "{name}");
        // And again, with more of it in memory, in company. A block of a window can only be taken over where the window was
        // whole when it was kept.
        let kept = if name.contains("window") { 256 } else { 299 };
        let streams: Vec<_> = (0..3).map(|_| engine.submit(request(&prompt, 8)).unwrap()).collect();
        for stream in streams {
            assert_eq!(read(stream).2.cached_tokens, kept, "{name}");
        }
    }
}
