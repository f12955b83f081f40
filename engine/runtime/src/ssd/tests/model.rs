//! Random use against a simple model: what comes back is what was put, and what was called durable outlives every crash.

use std::collections::HashSet;

use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::memory_files::MemoryFiles;
use super::world::{Known, fetch, flush, open};
use crate::ssd::{BlockKey, FetchPoll, PutOutcome, SessionNote, SsdTier, TierState};

/// What was put, as plain as can be.
#[derive(Default)]
struct Model {
    known: Vec<Known>,
    /// What was there at the last durable flush, and how much had been evicted then.
    durable: HashSet<BlockKey>,
    evictions: u64,
    /// Whether bytes were changed: then everything may be lost, but nothing may be wrong.
    is_damaged: bool,
}

impl Model {
    /// The chain that ends with a block.
    fn chain(&self, last: &Known) -> Vec<Known> {
        let mut chain = vec![last.clone()];
        while let Some(parent) = chain[0].parent {
            let parent = self.known.iter().find(|known| known.key == parent).unwrap();
            chain.insert(0, parent.clone());
        }
        chain
    }

    fn flushed(&mut self, tier: &SsdTier) {
        let stored = self.known.iter().filter(|known| tier.contains(&known.key));
        self.durable = stored.map(|known| known.key).collect();
        self.evictions = tier.status().evictions;
    }

    /// After a crash: all that was durable is there, unless something was evicted or damaged since. A compaction that was
    /// cut off leaves records twice, for which the start may have had to evict.
    fn check(&self, tier: &SsdTier, evicted_before: u64) {
        let evicted_now = tier.status().evictions;
        if !self.is_damaged && evicted_before == self.evictions && evicted_now == 0 {
            for known in self.known.iter().filter(|known| self.durable.contains(&known.key)) {
                assert!(tier.contains(&known.key), "a durable block is gone");
            }
        }
        for known in self.known.iter().filter(|known| tier.contains(&known.key)) {
            let chain = self.chain(known);
            let (count, end) = fetch(tier, &chain);
            let is_durable = self.durable.contains(&known.key) && !self.is_damaged;
            assert!(!is_durable || (count, end) == (chain.len(), FetchPoll::Done), "a durable block cannot be read");
        }
    }
}

fn run(seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let limit = *[1 << 16, 100_000, 1 << 18, 1 << 22].choose(&mut random).unwrap();
    let mut files = MemoryFiles::default();
    let mut tier = open(&files, limit).0;
    let mut model = Model::default();
    for step in 0..150 {
        match random.random_range(0..100) {
            // A block after one that is there, after any, or at the start; sometimes one that was put before.
            0..55 => {
                let parent = model.known.choose(&mut random).filter(|_| random.random_bool(0.85));
                let tokens = *[1, 4, 4, 4, 16].choose(&mut random).unwrap();
                let known = Known::new(parent, random.random_range(0..3), tokens);
                if !matches!(known.put(&tier), PutOutcome::Dropped(_)) && !model.known.contains(&known) {
                    model.known.push(known);
                }
            }
            55..75 => {
                if let Some(last) = model.known.choose(&mut random) {
                    // Compares what comes.
                    let (count, end) = fetch(&tier, &model.chain(last));
                    assert!(count > 0 || end != FetchPoll::Done);
                }
            }
            75..85 => {
                if let Some(last) = model.known.choose(&mut random) {
                    let tokens = (last.block.start + last.block.tokens) as u64;
                    let name = [random.random_range(0..4); 32];
                    tier.note_session(name, last.key, tokens);
                    let note = tier.session(&name);
                    assert!(note.is_none() || note == Some(SessionNote { key: last.key, tokens }));
                }
            }
            85..92 => {
                let report = flush(&tier);
                assert_eq!((report.pending_snapshots, report.failed_spills), (0, tier.status().failed_spills));
                model.flushed(&tier);
            }
            92..94 if seed.is_multiple_of(3) => {
                let path = files.names().choose(&mut random).cloned();
                if let Some(path) = path {
                    files.change(&path, |bytes| {
                        if !bytes.is_empty() {
                            let at = random.random_range(0..bytes.len());
                            bytes[at] ^= 1 << random.random_range(0..8);
                        }
                    });
                    model.is_damaged = true;
                }
            }
            // A crash, at whatever the writer is doing just now.
            _ => {
                let is_killed = random.random_bool(0.5);
                let evictions = tier.status().evictions;
                let left = if is_killed { files.kill(&mut random) } else { files.lose_power(&mut random) };
                // What happened between the two is not known: only what happened before both counts.
                let evictions = evictions.max(tier.status().evictions);
                assert!(files.peak() <= limit, "seed {seed}: {} bytes with a limit of {limit}", files.peak());
                drop(tier);
                files = left;
                let (opened, report) = open(&files, limit);
                assert_eq!(report.state, TierState::Ready, "seed {seed} step {step}: {report:?}");
                tier = opened;
                model.check(&tier, evictions);
                assert!(flush(&tier).durable);
                model.flushed(&tier);
            }
        }
        let status = tier.status();
        assert!(status.bytes <= limit, "seed {seed} step {step}: {status:?}");
        assert_eq!(status.state, TierState::Ready, "seed {seed} step {step}: {status:?}");
    }
    assert!(files.peak() <= limit);
}

#[test]
fn random_use_with_crashes_never_gives_a_wrong_block_nor_loses_a_durable_one() {
    for seed in 0..60 {
        run(seed);
    }
}
