//! Conversations with edits, branches, interruptions, evictions and restarts: what is kept never changes an answer.

use super::*;
use crate::{
    KvBudget,
    ssd::{SsdOptions, SsdTier},
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{path::Path, sync::Arc};

const BLOCK: usize = 8;
const CONTEXT: usize = 300;

/// How an engine with a cache is made; the same each time that it starts.
#[derive(Debug, Clone, Copy)]
struct Form {
    runs_ahead: bool,
    blocks: usize,
    cache_blocks: usize,
    chunk: usize,
}

impl Form {
    fn random(random: &mut ChaCha8Rng) -> Self {
        Self {
            runs_ahead: random.random(),
            blocks: random.random_range(45..160),
            cache_blocks: random.random_range(10..120),
            chunk: random.random_range(5..40),
        }
    }

    fn start(self, disk: &Path) -> Engine {
        let budget = KvBudget { capacity: self.blocks * BLOCK, page: BLOCK, is_padded: false };
        let model = ScriptedModel::noise()
            .kv_budget(budget)
            .keeps_blocks(BLOCK)
            .context_length(CONTEXT)
            .prefill_chunk(self.chunk);
        let model = if self.runs_ahead { model.runs_ahead().splits_last_token() } else { model };
        let options = EngineOptions { prefix_cache_bytes: self.cache_blocks * BLOCK * 8, ..Default::default() };
        let (tier, report) = SsdTier::open(SsdOptions::new(disk)).unwrap();
        assert!(report.discarded.is_empty(), "{report:?}");
        Engine::start_with_disk("kept", options, byte_text(), Some(Arc::new(tier)), move || Ok(model)).unwrap()
    }
}

fn random_tokens(random: &mut ChaCha8Rng, count: std::ops::Range<usize>) -> Vec<u32> {
    (0..random.random_range(count)).map(|_| random.random_range(0..5)).collect()
}

#[test]
fn two_hundred_conversations_are_answered_as_without_anything_kept() {
    let cold = start(ScriptedModel::noise().context_length(CONTEXT));
    let (mut conversations, mut cached, mut restored, mut evicted) = (0, 0, 0, 0);
    for seed in 0..20 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (form, disk) = (Form::random(&mut random), tempfile::tempdir().unwrap());
        let mut engine = form.start(disk.path());
        let system = random_tokens(&mut random, 20..60);
        let mut running: Vec<Vec<u32>> = Vec::new();
        let mut begun = 0;
        while begun < 10 || !running.is_empty() {
            while running.len() < 4 && begun < 10 {
                begun += 1;
                let branch = (!running.is_empty() && random.random_bool(0.3)).then(|| running[0].clone());
                running.push(branch.unwrap_or_else(|| system.clone()));
            }
            // Some of them speak at once.
            let mut asked = Vec::new();
            for (number, history) in running.iter_mut().enumerate() {
                if random.random_bool(0.6) {
                    if random.random_bool(0.25) {
                        // An edit: everything from there on is said anew.
                        history.truncate(random.random_range(1..history.len()));
                    }
                    history.extend(random_tokens(&mut random, 1..25));
                    history.truncate(CONTEXT - 40);
                    let session = random.random_bool(0.5).then(|| format!("conversation {number}"));
                    let tokens = random.random_range(1..30);
                    let request = GenerationRequest {
                        prompt: history.clone(),
                        max_tokens: Some(tokens),
                        session,
                        ..Default::default()
                    };
                    asked.push((number, request.clone(), engine.submit(request).unwrap()));
                }
            }
            for (number, request, mut stream) in asked {
                if random.random_bool(0.15) {
                    drop(stream.blocking_next());
                    continue;
                }
                let found = read(stream);
                let expected = answer(&cold, request);
                assert_eq!(found.tokens, expected.tokens, "seed {seed}, {form:?}");
                cached += found.usage().cached_tokens;
                running[number].extend(found.tokens);
            }
            running.retain(|history| history.len() < CONTEXT - 80 && !random.random_bool(0.1));
            if random.random_bool(0.15) {
                let status = engine.cache_status();
                evicted += status.ram.evictions;
                restored += status.disk.unwrap().restores;
                engine.stop();
                engine = form.start(disk.path());
            }
        }
        conversations += begun;
        restored += engine.cache_status().disk.unwrap().restores;
        evicted += engine.cache_status().ram.evictions;
        assert_eq!(engine.status().failed, 0);
    }
    assert!(
        conversations >= 200 && cached > 20_000 && restored > 200 && evicted > 500,
        "{cached} {restored} {evicted}"
    );
}

#[test]
fn a_cold_start_finds_what_was_flushed_and_the_rest_goes_on_meanwhile() {
    let disk = tempfile::tempdir().unwrap();
    let form = Form { runs_ahead: false, blocks: 400, cache_blocks: 300, chunk: 16 };
    let engine = form.start(disk.path());
    let prompt = "p".repeat(20 * BLOCK + 3);
    let ask = |tokens| GenerationRequest { max_tokens: Some(tokens), ..request(&prompt) };
    let first = answer(&engine, ask(5));
    let flush = engine.flush_cache();
    assert!(flush.durable, "{flush:?}");
    assert_eq!((flush.entries, flush.missing_snapshots), (20, 0));
    assert_eq!(flush.longest_durable_prefix_tokens, 20 * BLOCK);
    assert!(engine.flush_cache().durable, "again, with nothing to do");
    engine.stop();
    let engine = form.start(disk.path());
    assert_eq!(engine.cache_status().disk.unwrap().entries, 20);
    let again = answer(&engine, ask(5));
    assert_eq!(again.usage().cached_tokens, 20 * BLOCK, "whole blocks come back");
    assert_eq!(again.tokens, first.tokens);
    assert_eq!(answer(&engine, ask(5)).usage().cached_tokens, prompt.len() - 1, "from memory now");
    assert_eq!(engine.cache_status().disk.unwrap().restores, 20);
}

#[test]
fn a_flush_answers_while_somebody_is_told_an_answer() {
    let disk = tempfile::tempdir().unwrap();
    let form = Form { runs_ahead: true, blocks: 400, cache_blocks: 300, chunk: 16 };
    let engine = form.start(disk.path());
    let mut stream = engine.submit(request("somebody asks for a long answer")).unwrap();
    read_tokens(&mut stream, 30);
    let flush = engine.flush_cache();
    assert!(flush.durable && flush.entries >= 6, "{flush:?}");
    read_tokens(&mut stream, 1);
}

#[test]
fn without_a_disk_only_an_empty_cache_is_durable() {
    let engine = start(ScriptedModel::noise().keeps_blocks(BLOCK));
    assert!(engine.flush_cache().durable);
    answer(&engine, GenerationRequest { max_tokens: Some(9), ..request("something to keep") });
    let flush = engine.flush_cache();
    assert!(!flush.durable && flush.missing_snapshots > 0, "{flush:?}");
    assert_eq!(engine.cache_status().disk, None);
}
