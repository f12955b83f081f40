//! Every operation of the file system fails once, in every way, and once for good.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::memory_files::{Fault, MemoryFiles};
use super::world::{Known, LONG, chain, fetch, flush, keys, open, put_all};
use crate::ssd::{FetchPoll, SsdTier, TierState};

const LIMIT: u64 = 1 << 16;

const FAULTS: [Fault; 7] = [
    Fault::Error(ErrorKind::Other),
    Fault::Error(ErrorKind::StorageFull),
    Fault::Error(ErrorKind::ReadOnlyFilesystem),
    Fault::Error(ErrorKind::Interrupted),
    Fault::Short,
    Fault::Torn(ErrorKind::Other),
    Fault::Torn(ErrorKind::StorageFull),
];

/// Uses everything: opens what is there, writes over the border of segments and of the limit, flushes, reads.
fn use_all(files: &MemoryFiles) -> (SsdTier, Vec<Known>, bool) {
    let (tier, _) = open(files, LIMIT);
    let (first, second) = (chain(1, 12), chain(2, 60));
    for known in &first {
        known.put(&tier);
    }
    tier.note_session([1; 32], first[11].key, 48);
    let _ = flush(&tier);
    for known in &second {
        known.put(&tier);
    }
    fetch(&tier, &first);
    fetch(&tier, &second);
    let is_durable = flush(&tier).durable;
    let stored = second.into_iter().chain(first).filter(|known| tier.contains(&known.key)).collect();
    (tier, stored, is_durable)
}

/// A directory with something in it, left by a crash.
fn used() -> MemoryFiles {
    let files = MemoryFiles::default();
    let (tier, _) = open(&files, LIMIT);
    put_all(&tier, &chain(3, 20));
    assert!(flush(&tier).durable);
    put_all(&tier, &chain(4, 5));
    files.kill(&mut ChaCha8Rng::seed_from_u64(1))
}

fn check(at: u64, count: u64, fault: Fault) {
    let name = format!("operation {at}, {count} times {fault:?}");
    let files = used();
    files.fail(at, count, fault);
    let (tier, stored, is_durable) = use_all(&files);
    assert!(files.peak() <= LIMIT, "{name}: {} bytes", files.peak());
    let status = tier.status();
    if is_durable {
        let mut random = ChaCha8Rng::seed_from_u64(at);
        let left = files.lose_power(&mut random);
        let (after, report) = open(&left, LIMIT);
        assert_eq!(report.state, TierState::Ready, "{name}");
        for known in &stored {
            assert!(after.contains(&known.key), "{name}: a durable block is gone; {status:?}");
        }
    }
    // When the trouble is over, so is the state, without a restart.
    files.heal();
    let until = Instant::now() + LONG;
    while tier.status().state != TierState::Ready {
        assert!(Instant::now() < until, "{name}: {:?}", tier.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let last = chain(9, 3);
    put_all(&tier, &last);
    tier.forget_missing();
    let report = flush(&tier);
    assert!(report.durable, "{name}: {report:?}");
    assert_eq!(fetch(&tier, &last), (3, FetchPoll::Done), "{name}");
    assert!(files.peak() <= LIMIT, "{name}: {} bytes", files.peak());
    drop(tier);
    let (tier, report) = open(&files, LIMIT);
    assert_eq!(report.state, TierState::Ready, "{name}: {report:?}");
    assert_eq!(fetch(&tier, &last), (3, FetchPoll::Done), "{name}");
}

#[test]
fn whichever_operation_fails_nothing_is_wrong_and_it_heals() {
    let files = used();
    let before = files.operations();
    drop(use_all(&files));
    let operations = files.operations() - before;
    assert!(operations > 100, "{operations}");
    for (offset, fault) in (0..).zip(FAULTS) {
        // Operations of readers and writer interleave, so the order is never quite the same; all get their turn, if not
        // with each fault.
        let step = if offset == 0 { 1 } else { 4 };
        for at in (offset % step..operations).step_by(step as usize) {
            check(at, 1, fault);
        }
        for at in (offset..operations).step_by(11) {
            // Without an end it would be tried again for ever.
            let count = if fault == Fault::Error(ErrorKind::Interrupted) { 3 } else { u64::MAX };
            check(at, count, fault);
        }
    }
}

#[test]
fn each_trouble_has_its_state_and_reading_goes_on() {
    let states = [
        (ErrorKind::StorageFull, TierState::DiskFull),
        (ErrorKind::QuotaExceeded, TierState::DiskFull),
        (ErrorKind::ReadOnlyFilesystem, TierState::ReadOnly),
        (ErrorKind::PermissionDenied, TierState::ReadOnly),
        (ErrorKind::Other, TierState::Failing),
    ];
    for (kind, state) in states {
        let files = MemoryFiles::default();
        let (tier, _) = open(&files, LIMIT);
        let long = chain(1, 5);
        put_all(&tier, &long[..4]);
        assert!(flush(&tier).durable);
        files.fail(0, u64::MAX, Fault::Error(kind));
        long[4].put(&tier);
        let report = flush(&tier);
        assert!(!report.durable && report.missing_snapshots == 1, "{report:?}");
        let status = tier.status();
        assert_eq!((status.state, status.entries), (state, 4), "{kind:?}");
        assert!(status.detail.is_some() && status.state.remedy().is_some());
        files.heal();
        assert_eq!(fetch(&tier, &long[..4]), (4, FetchPoll::Done));
    }
}

#[test]
fn a_directory_that_another_process_uses_is_left_alone_and_taken_over_when_it_is_free() {
    let files = MemoryFiles::default();
    let long = chain(1, 5);
    let (first, _) = open(&files, LIMIT);
    put_all(&first, &long);
    assert!(flush(&first).durable);
    let (second, report) = open(&files, LIMIT);
    assert_eq!((report.state, report.entries), (TierState::InUse, 0));
    assert_eq!(second.stored_prefix(&keys(&long)), 0);
    long[0].put(&second);
    assert!(!flush(&second).durable);
    drop(first);
    second.forget_missing();
    assert!(flush(&second).durable, "a flush looks whether the directory is free by now");
    assert_eq!(second.status().state, TierState::Ready);
    assert_eq!(fetch(&second, &long), (5, FetchPoll::Done));
}

#[test]
fn a_disk_that_others_fill_is_not_filled_further_and_used_again_when_there_is_room() {
    let limit = 1 << 20;
    let files = MemoryFiles::default();
    let (tier, _) = open(&files, limit);
    put_all(&tier, &chain(1, 200));
    assert!(flush(&tier).durable);
    let bytes = files.bytes();
    files.set_capacity(Some(bytes));
    for known in &chain(2, 300) {
        known.put(&tier);
    }
    let _ = flush(&tier);
    assert!(files.bytes() <= bytes);
    files.set_capacity(None);
    tier.forget_missing();
    let until = Instant::now() + LONG;
    while tier.status().state != TierState::Ready {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    let long = chain(5, 100);
    put_all(&tier, &long);
    assert!(flush(&tier).durable);
    assert_eq!(fetch(&tier, &long), (100, FetchPoll::Done));
}
