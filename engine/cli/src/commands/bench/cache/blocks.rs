//! Each checkpoint through the prefix cache's tier on disk.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use linnet_runtime::ssd::{BlockKey, FetchPoll, PutOutcome, SsdOptions, SsdTier};

use super::state::{State, key};
use super::{CHECKPOINTS, Sample, milliseconds};

const LONG: Duration = Duration::from_secs(600);

/// One run. All that the tier needs is counted: the keys of all blocks, the look-up, the copies of those that are new,
/// their checksums, the flush; and for reading, the verification.
pub(super) fn sample(state: &State, folder: &Path, block_tokens: usize) -> anyhow::Result<Sample> {
    let options = || SsdOptions { limit_bytes: Some(64 << 30), ..SsdOptions::new(folder) };
    let (tier, opened) = SsdTier::open(options())?;
    ensure!(opened.entries == 0, "the folder is not empty");
    let mut checkpoints_ms = [0.0; CHECKPOINTS];
    for (at, tokens) in state.checkpoints().into_iter().enumerate() {
        let begun = Instant::now();
        write(&tier, state, tokens, block_tokens)?;
        checkpoints_ms[at] = milliseconds(begun.elapsed());
    }
    let bytes = tier.status().bytes;
    drop(tier);
    let begun = Instant::now();
    let (tier, _) = SsdTier::open(options())?;
    let open_ms = milliseconds(begun.elapsed());
    let begun = Instant::now();
    let keys = keys(state, state.tokens.len(), block_tokens);
    let mut fetch = tier.fetch(keys.clone());
    let mut blocks = Vec::with_capacity(keys.len());
    loop {
        match fetch.wait(LONG) {
            FetchPoll::Block(block) => blocks.push(block),
            FetchPoll::Done => break,
            FetchPoll::Failed(error) => return Err(error.into()),
            FetchPoll::Pending => bail!("the disk does not answer"),
        }
    }
    let read_ms = milliseconds(begun.elapsed());
    ensure!(blocks.len() == keys.len(), "{} of {} blocks came back", blocks.len(), keys.len());
    for found in blocks {
        let expected = state.block(found.block.start, found.block.tokens);
        ensure!(*found.block == expected, "what was read is not what was written");
    }
    Ok(Sample { write_ms: checkpoints_ms.iter().sum(), checkpoints_ms, read_ms, open_ms, bytes })
}

fn keys(state: &State, tokens: usize, block_tokens: usize) -> Vec<BlockKey> {
    let mut keys: Vec<BlockKey> = Vec::new();
    for block in state.tokens[..tokens].chunks(block_tokens) {
        keys.push(key(keys.last().copied(), block));
    }
    keys
}

fn write(tier: &SsdTier, state: &State, tokens: usize, block_tokens: usize) -> anyhow::Result<()> {
    let keys = keys(state, tokens, block_tokens);
    let known = tier.stored_prefix(&keys);
    for (at, key) in keys.iter().enumerate().skip(known) {
        let start = at * block_tokens;
        let end = (start + block_tokens).min(tokens);
        let block = state.block(start, end - start);
        ensure!(tier.wait_for_room(block.bytes(), LONG), "the disk does not keep up");
        let parent = at.checked_sub(1).map(|parent| keys[parent]);
        let outcome = tier.put(*key, parent, &state.tokens[start..end], Arc::new(block));
        ensure!(outcome == PutOutcome::Queued, "a block was not taken: {outcome:?}");
    }
    let report = tier.flush(LONG);
    ensure!(report.durable, "the flush is not durable: {report:?}");
    Ok(())
}
