//! Blocks whose contents follow from their keys, and the usual steps with them.

use std::sync::Arc;
use std::time::Duration;

use linnet_compute::{Dtype, KvBlock, KvData, KvFormat, LayerBlock};

use super::memory_files::MemoryFiles;
use crate::ssd::record::checksum;
use crate::ssd::{BlockKey, FetchPoll, FetchedBlock, FlushReport, OpenReport, PutOutcome, SsdOptions, SsdTier};

pub(super) const LONG: Duration = Duration::from_secs(60);

/// A block and all that there is to know about it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Known {
    pub(super) key: BlockKey,
    pub(super) parent: Option<BlockKey>,
    pub(super) tokens: Vec<u32>,
    pub(super) block: Arc<KvBlock>,
}

impl Known {
    /// A block of `tokens` tokens after a parent. Its contents follow from its key, and its key from parent and `name`.
    pub(super) fn new(parent: Option<&Self>, name: u64, tokens: usize) -> Self {
        let start = parent.map_or(0, |parent| parent.block.start + parent.block.tokens);
        let parent = parent.map(|parent| parent.key);
        let bytes = [parent.unwrap_or_default().as_slice(), &name.to_le_bytes(), &tokens.to_le_bytes()].concat();
        let mut key = [0; 32];
        for (at, part) in key.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&checksum(&[bytes.as_slice(), &[at as u8]].concat()).to_le_bytes());
        }
        let data = |seed: u8| {
            let parts =
                vec![(0..tokens * 64).map(|at| key[at % 32].wrapping_add(seed).wrapping_mul(at as u8)).collect()];
            KvData { format: KvFormat::Plain(Dtype::F16), heads: 2, tokens, head_dim: 16, parts }
        };
        let layer = |seed: u8| LayerBlock { first: start, keys: data(seed), values: data(seed + 1) };
        let block = Arc::new(KvBlock { start, tokens, layers: vec![layer(1), layer(7)] });
        let tokens = (0..tokens).map(|at| u32::from(key[at % 32]) + at as u32).collect();
        Self { key, parent, tokens, block }
    }

    pub(super) fn put(&self, tier: &SsdTier) -> PutOutcome {
        tier.put(self.key, self.parent, self.tokens.as_slice(), Arc::clone(&self.block))
    }

    pub(super) fn is(&self, fetched: &FetchedBlock) -> bool {
        fetched.key == self.key && *fetched.tokens == *self.tokens && fetched.block == self.block
    }
}

/// A chain of blocks of four tokens.
pub(super) fn chain(name: u64, length: u64) -> Vec<Known> {
    let mut chain: Vec<Known> = Vec::new();
    for _ in 0..length {
        chain.push(Known::new(chain.last(), name, 4));
    }
    chain
}

pub(super) fn keys(chain: &[Known]) -> Vec<BlockKey> {
    chain.iter().map(|known| known.key).collect()
}

pub(super) fn options(limit: u64) -> SsdOptions {
    SsdOptions {
        limit_bytes: Some(limit),
        sync_when_idle: None,
        // On a busy machine the tests would take for ever.
        is_background: false,
        retry: Duration::from_millis(1),
        ..SsdOptions::new("cache")
    }
}

pub(super) fn open(files: &MemoryFiles, limit: u64) -> (SsdTier, OpenReport) {
    SsdTier::open_on(options(limit), Arc::new(files.clone())).unwrap()
}

pub(super) fn put_all(tier: &SsdTier, chain: &[Known]) {
    for known in chain {
        assert_ne!(known.put(tier), PutOutcome::Present);
    }
}

pub(super) fn flush(tier: &SsdTier) -> FlushReport {
    tier.flush(LONG)
}

/// Fetches a chain, compares what comes with what was put, and says how many blocks came and how it ended.
pub(super) fn fetch(tier: &SsdTier, chain: &[Known]) -> (usize, FetchPoll) {
    let mut fetch = tier.fetch(keys(chain));
    let mut count = 0;
    loop {
        match fetch.wait(LONG) {
            FetchPoll::Block(block) => {
                assert!(chain[count].is(&block), "block {count} is not what was put");
                count += 1;
            }
            end => return (count, end),
        }
    }
}
