//! What is put comes back: from the queue, from the disk, after a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::memory_files::MemoryFiles;
use super::world::{Known, LONG, chain, fetch, flush, keys, open, options, put_all};
use crate::ssd::{DropReason, FetchError, FetchPoll, PutOutcome, SessionNote, SsdOptions, SsdTier, TierState};

const MIB: u64 = 1 << 20;

#[test]
fn what_was_flushed_is_there_after_a_restart_and_shared_blocks_are_stored_once() {
    let files = MemoryFiles::default();
    let common = chain(1, 20);
    let branch = Known::new(common.get(9), 77, 4);
    {
        let (tier, report) = open(&files, MIB);
        assert_eq!((report.state, report.entries), (TierState::Ready, 0));
        put_all(&tier, &common);
        assert_eq!(branch.put(&tier), PutOutcome::Queued);
        let report = flush(&tier);
        assert!(report.durable, "{report:?}");
        assert_eq!((report.flushed_snapshots, report.entries, report.longest_durable_prefix_tokens), (21, 21, 80));
        let bytes = files.bytes();
        assert!(common.iter().all(|known| known.put(&tier) == PutOutcome::Present));
        assert!(flush(&tier).durable);
        assert_eq!(files.bytes(), bytes, "a block was stored twice");
    }
    let (tier, report) = open(&files, MIB);
    assert_eq!((report.state, report.entries, report.discarded.as_slice()), (TierState::Ready, 21, [].as_slice()));
    assert_eq!(fetch(&tier, &common), (20, FetchPoll::Done));
    let other = [&common[..10], std::slice::from_ref(&branch)].concat();
    assert_eq!(tier.stored_prefix(&keys(&other)), 11);
    assert_eq!(fetch(&tier, &other), (11, FetchPoll::Done));
    assert_eq!(tier.stored_prefix(&keys(&chain(2, 3))), 0);
    // What was there before goes on growing in the same segment.
    let segments = files.names().len();
    assert_eq!(Known::new(common.last(), 1, 4).put(&tier), PutOutcome::Queued);
    assert!(flush(&tier).durable);
    assert_eq!(files.names().len(), segments);
}

#[test]
fn what_still_waits_to_be_written_is_served_from_memory() {
    let files = MemoryFiles::default();
    let (tier, _) = open(&files, MIB);
    let long = chain(1, 100);
    put_all(&tier, &long);
    assert_eq!(tier.stored_prefix(&keys(&long)), 100);
    assert_eq!(fetch(&tier, &long), (100, FetchPoll::Done));
}

#[test]
fn a_fetch_reads_no_further_than_its_window_until_something_is_taken() {
    let files = MemoryFiles::default();
    let long = chain(1, 50);
    {
        let (tier, _) = open(&files, MIB);
        put_all(&tier, &long);
        assert!(flush(&tier).durable);
    }
    let window = 3 * long[0].block.bytes();
    let small = crate::ssd::SsdOptions { restore_window_bytes: window, ..options(MIB) };
    let (tier, _) = SsdTier::open_on(small, Arc::new(files)).unwrap();
    let mut slow = tier.fetch(keys(&long));
    // Another fetch gets through although this one stands still.
    assert_eq!(fetch(&tier, &long), (50, FetchPoll::Done));
    let until = Instant::now() + LONG;
    while tier.status().restores < 53 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(tier.status().restores, 53);
    let mut count = 0;
    while let FetchPoll::Block(block) = slow.wait(LONG) {
        assert!(long[count].is(&block));
        count += 1;
    }
    assert_eq!((count, slow.poll()), (50, FetchPoll::Done));
}

#[test]
fn a_dropped_fetch_and_an_empty_one_hold_nothing_up() {
    let files = MemoryFiles::default();
    let (tier, _) = open(&files, MIB);
    let long = chain(1, 200);
    put_all(&tier, &long);
    assert!(flush(&tier).durable);
    for _ in 0..10 {
        drop(tier.fetch(keys(&long)));
    }
    assert_eq!(tier.fetch(Vec::new()).poll(), FetchPoll::Done);
    assert_eq!(fetch(&tier, &long[..3]), (3, FetchPoll::Done));
    drop(tier);
    // One block at a time, or all may have been read before the tier is gone.
    let narrow = SsdOptions { restore_window_bytes: 1, ..options(MIB) };
    let tier = SsdTier::open_on(narrow, Arc::new(files)).unwrap().0;
    let mut open_end = tier.fetch(keys(&long));
    drop(tier);
    let end = loop {
        match open_end.wait(LONG) {
            FetchPoll::Block(_) => {}
            end => break end,
        }
    };
    assert_eq!(end, FetchPoll::Failed(FetchError::Stopped));
}

#[test]
fn a_session_is_found_after_a_restart_until_it_is_closed_or_its_blocks_are_gone() {
    let files = MemoryFiles::default();
    let long = chain(1, 10);
    let note = |at: usize| SessionNote { key: long[at].key, tokens: 4 * (at as u64 + 1) };
    let (kept, closed) = ([1; 32], [2; 32]);
    {
        let (tier, _) = open(&files, MIB);
        put_all(&tier, &long);
        for note in (0..10).map(note) {
            tier.note_session(kept, note.key, note.tokens);
            tier.note_session(closed, note.key, note.tokens);
        }
        assert!(tier.close_session(closed));
        assert!(!tier.close_session([3; 32]));
        assert!(flush(&tier).durable);
        assert_eq!(tier.session(&kept), Some(note(9)));
    }
    let (tier, report) = open(&files, MIB);
    assert_eq!(report.sessions, 1);
    assert_eq!((tier.session(&kept), tier.session(&closed)), (Some(note(9)), None));
    let bytes = files.bytes();
    tier.note_session(kept, long[9].key, note(9).tokens);
    assert!(flush(&tier).durable);
    assert_eq!(files.bytes(), bytes, "what is known was written again");
    tier.note_session(kept, long[4].key, note(4).tokens);
    assert!(flush(&tier).durable);
    drop(tier);
    let (tier, _) = open(&files, MIB);
    assert_eq!(tier.session(&kept), Some(note(4)), "an edited history is shorter than what came before");
}

#[test]
fn a_session_whose_newest_blocks_did_not_reach_the_disk_is_where_it_was_before() {
    let files = MemoryFiles::default();
    let long = chain(1, 4000);
    let left = {
        let (tier, _) = open(&files, 64 * MIB);
        put_all(&tier, &long[..10]);
        tier.note_session([1; 32], long[9].key, 40);
        let ticket = tier.begin_flush();
        // Whatever of this is written when the power fails, what was flushed before is there.
        put_all(&tier, &long[10..]);
        tier.note_session([1; 32], long[3999].key, 16_000);
        assert!(ticket.wait(LONG).durable);
        files.lose_power(&mut ChaCha8Rng::seed_from_u64(0))
    };
    let (tier, _) = open(&left, 64 * MIB);
    let note = tier.session(&[1; 32]).unwrap();
    assert!(note.tokens == 40 || note.tokens == 16_000, "{note:?}");
}

#[test]
fn what_could_never_be_found_or_read_is_not_stored_and_the_flush_says_so() {
    let files = MemoryFiles::default();
    let (tier, _) = open(&files, MIB);
    let long = chain(1, 3);
    assert_eq!(long[1].put(&tier), PutOutcome::Dropped(DropReason::ParentMissing));
    put_all(&tier, &long[..1]);
    let gap = Known { block: Arc::clone(&long[2].block), ..long[1].clone() };
    assert_eq!(gap.put(&tier), PutOutcome::Dropped(DropReason::Malformed));
    let rootless = Known { parent: None, ..long[1].clone() };
    assert_eq!(rootless.put(&tier), PutOutcome::Dropped(DropReason::Malformed));
    let large = Known::new(long.first(), 5, 2000);
    assert_eq!(large.put(&tier), PutOutcome::Dropped(DropReason::TooLarge));
    let report = flush(&tier);
    assert!(!report.durable);
    // The gap, the rootless block and the first try share a key.
    assert_eq!((report.missing_snapshots, report.dropped_spills), (2, 4));
    assert_eq!(long[1].put(&tier), PutOutcome::Queued);
    assert_eq!(flush(&tier).missing_snapshots, 1, "what is stored now is not missing");
    assert_eq!(tier.forget_missing(), 1);
    assert!(flush(&tier).durable);
}

#[test]
fn a_full_queue_drops_and_counts_and_does_not_wait() {
    let files = MemoryFiles::default();
    let long = chain(1, 400);
    let queue = 4 * long[0].block.bytes();
    let small = crate::ssd::SsdOptions { queue_bytes: queue, ..options(8 * MIB) };
    let (tier, _) = SsdTier::open_on(small, Arc::new(files)).unwrap();
    let outcomes: Vec<_> = long.iter().map(|known| known.put(&tier)).collect();
    let queued = outcomes.iter().filter(|outcome| **outcome == PutOutcome::Queued).count();
    let report = flush(&tier);
    assert_eq!((report.entries, report.dropped_spills), (queued, 400 - queued as u64));
    assert_eq!(report.durable, queued == 400);
    // Those who may wait get everything in.
    for known in &long {
        assert!(tier.wait_for_room(known.block.bytes(), LONG));
        assert!(!matches!(known.put(&tier), PutOutcome::Dropped(_)));
    }
    assert!(flush(&tier).durable);
    assert_eq!(fetch(&tier, &long), (400, FetchPoll::Done));
}

#[test]
fn written_blocks_become_durable_without_being_asked_when_nothing_else_happens() {
    let files = MemoryFiles::default();
    let idle = crate::ssd::SsdOptions { sync_when_idle: Some(Duration::from_millis(5)), ..options(MIB) };
    let (tier, _) = SsdTier::open_on(idle, Arc::new(files)).unwrap();
    put_all(&tier, &chain(1, 3));
    let until = Instant::now() + LONG;
    while tier.status().longest_durable_prefix_tokens < 12 {
        assert!(Instant::now() < until, "{:?}", tier.status());
        std::thread::sleep(Duration::from_millis(1));
    }
}
