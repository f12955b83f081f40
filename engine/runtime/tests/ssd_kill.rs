//! A process that writes and flushes is killed at random moments. Whatever it was doing, the next one starts, finds what
//! was flushed, serves nothing wrong, and the files keep the limit.
//!
//! `LINNET_KILLS=100 cargo test -p linnet-runtime --test ssd_kill` kills more often than the tests usually do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linnet_compute::{Dtype, KvBlock, KvData, KvFormat, LayerBlock};
use linnet_runtime::ssd::{BlockKey, FetchPoll, PutOutcome, SsdOptions, SsdTier, TierState};

const LONG: Duration = Duration::from_secs(120);
const LIMIT: u64 = 4 << 20;
const CHAIN: u64 = 24;
/// The folder, for the process that is to be killed.
const FOLDER: &str = "LINNET_KILL_FOLDER";
/// The number of its first chain.
const FIRST: &str = "LINNET_KILL_FIRST";

fn options(folder: &Path) -> SsdOptions {
    SsdOptions { limit_bytes: Some(LIMIT), is_background: false, sync_when_idle: None, ..SsdOptions::new(folder) }
}

/// The key of a chain's block. It follows from two numbers, as all of the block does.
fn key(chain: u64, at: u64) -> BlockKey {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&chain.to_le_bytes());
    key[8..16].copy_from_slice(&at.to_le_bytes());
    key
}

fn block(chain: u64, at: u64) -> Arc<KvBlock> {
    let tokens = 16;
    let start = at as usize * tokens;
    let mut word = (chain << 20 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = || {
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word as u8
        };
        let parts = vec![(0..2 * tokens * 16 * 2).map(|_| next()).collect()];
        KvData { format: KvFormat::Plain(Dtype::F16), heads: 2, tokens, head_dim: 16, parts }
    };
    let layers = (0..4).map(|_| LayerBlock { first: start, keys: data(), values: data() }).collect();
    Arc::new(KvBlock { start, tokens, layers })
}

fn tokens(chain: u64, at: u64) -> Vec<u32> {
    (0..16).map(|token| (chain * 1000 + at * 16 + token) as u32).collect()
}

fn keys(chain: u64) -> Vec<BlockKey> {
    (0..CHAIN).map(|at| key(chain, at)).collect()
}

/// Not a test but the process that is killed: writes chains for ever, and says after each flush which are durable.
#[test]
fn write_until_killed() {
    let (Ok(folder), Ok(first)) = (std::env::var(FOLDER), std::env::var(FIRST)) else { return };
    let (tier, report) = SsdTier::open(options(Path::new(&folder))).unwrap();
    assert_eq!(report.state, TierState::Ready, "{report:?}");
    let mut out = std::io::stderr();
    writeln!(out, "open").unwrap();
    for chain in first.parse::<u64>().unwrap().. {
        for at in 0..CHAIN {
            let block = block(chain, at);
            let parent = at.checked_sub(1).map(|at| key(chain, at));
            assert!(tier.wait_for_room(block.bytes(), LONG));
            assert_eq!(tier.put(key(chain, at), parent, tokens(chain, at), block), PutOutcome::Queued);
        }
        tier.note_session([7; 32], keys(chain)[CHAIN as usize - 1], CHAIN * 16);
        if chain % 3 == 0 {
            let report = tier.flush(LONG);
            assert!(report.durable, "{report:?}");
            writeln!(out, "flushed {chain}").unwrap();
        }
    }
}

fn used_bytes(folder: &Path) -> u64 {
    // The process may remove a file while this one looks.
    let entries = std::fs::read_dir(folder).unwrap().filter_map(Result::ok);
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

/// Reads every chain that is there and compares it. How many blocks there are.
fn check(tier: &SsdTier, chains: u64) -> usize {
    let mut count = 0;
    for chain in 0..chains {
        let keys = keys(chain);
        let there = tier.stored_prefix(&keys);
        let mut fetch = tier.fetch(keys[..there].to_vec());
        for at in 0..there as u64 {
            match fetch.wait(LONG) {
                FetchPoll::Block(found) => {
                    assert_eq!((found.key, found.block), (key(chain, at), block(chain, at)));
                    assert_eq!(*found.tokens, *tokens(chain, at));
                }
                other => panic!("block {at} of chain {chain}: {other:?}"),
            }
        }
        assert_eq!(fetch.wait(LONG), FetchPoll::Done);
        count += there;
    }
    count
}

#[test]
fn a_process_killed_at_any_moment_loses_only_what_was_not_flushed_and_serves_nothing_wrong() {
    let kills = std::env::var("LINNET_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(20);
    let folder = tempfile::tempdir().unwrap();
    let (mut next, mut word) = (0_u64, 0x2545_f491_4f6c_dd1d_u64);
    for kill in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["write_until_killed", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(FIRST, next.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let opened = lines.next().expect("the process ended before it began").unwrap();
        assert_eq!(opened, "open", "{:?}", lines.collect::<Vec<_>>());
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        // Up to a time in which the limit is reached and passed.
        let until = Instant::now() + Duration::from_millis(word % 150);
        while Instant::now() < until {
            assert!(used_bytes(folder.path()) <= LIMIT, "kill {kill}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used_bytes(folder.path()) <= LIMIT, "kill {kill}");
        let flushed = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("flushed ")?.parse::<u64>().ok());
        let flushed = flushed.last();

        let (tier, report) = SsdTier::open(options(folder.path())).unwrap();
        assert_eq!(report.state, TierState::Ready, "kill {kill}: {report:?}");
        if let Some(flushed) = flushed {
            // The newest that was durable is evicted last.
            assert_eq!(tier.stored_prefix(&keys(flushed)), CHAIN as usize, "kill {kill}: {report:?}");
            let note = tier.session(&[7; 32]).expect("the session's note was flushed");
            assert_eq!(note.tokens, CHAIN * 16);
        }
        next = flushed.map_or(next, |flushed| flushed + 1);
        // What was written after the last flush may be there or not.
        next += 10;
        let count = check(&tier, next);
        assert_eq!(count, report.entries, "kill {kill}: there are blocks that no chain leads to");
    }
}
