//! The limit holds at every moment, and what is kept within it is what is used.

use super::memory_files::MemoryFiles;
use super::world::{chain, fetch, flush, keys, open, put_all};
use crate::ssd::{FetchPoll, SessionNote};

#[test]
fn ten_times_the_limit_is_written_and_never_more_than_the_limit_is_there() {
    for limit in [1 << 16, 200_000, 1 << 20] {
        let files = MemoryFiles::default();
        let (tier, _) = open(&files, limit);
        let block = chain(0, 1)[0].block.bytes() as u64;
        for name in 0..limit * 10 / block / 8 {
            for known in &chain(name, 8) {
                known.put(&tier);
            }
            if name % 8 == 0 {
                let _ = flush(&tier);
            }
        }
        let report = flush(&tier);
        assert!(files.peak() <= limit, "{} of {limit}", files.peak());
        assert!(report.durable, "{report:?}");
        let status = tier.status();
        let kept = report.entries as u64 * block;
        // The smaller the blocks are, the more their headers and trailers weigh; these are very small.
        assert!(kept > limit * 2 / 5, "only {kept} of {limit} are of use: {status:?}");
        assert_eq!(files.bytes(), status.bytes);
        // The newest are there, the oldest are not.
        let newest = chain(limit * 10 / block / 8 - 1, 8);
        assert_eq!(fetch(&tier, &newest), (8, FetchPoll::Done));
        assert_eq!(tier.stored_prefix(&keys(&chain(0, 8))), 0);
        // Written once and copied seldom.
        assert!(status.copied_bytes < status.written_bytes / 2, "{status:?}");
    }
}

#[test]
fn what_is_used_again_and_again_outlives_what_is_not() {
    let files = MemoryFiles::default();
    let limit = 1 << 18;
    let (tier, _) = open(&files, limit);
    let precious = chain(u64::MAX, 20);
    put_all(&tier, &precious);
    tier.note_session([1; 32], precious[19].key, 80);
    for name in 0..400 {
        put_all(&tier, &chain(name, 8));
        let _ = flush(&tier);
        assert_eq!(tier.stored_prefix(&keys(&precious)), 20, "evicted although just used, at {name}");
    }
    assert!(tier.status().evictions > 1000);
    assert_eq!(fetch(&tier, &precious), (20, FetchPoll::Done));
    assert!(flush(&tier).durable);
    drop(tier);
    let (tier, _) = open(&files, limit);
    assert_eq!(fetch(&tier, &precious), (20, FetchPoll::Done));
    assert_eq!(tier.session(&[1; 32]), Some(SessionNote { key: precious[19].key, tokens: 80 }));
    // Once nobody uses it, it goes, and the session with it.
    for name in 1000..1400 {
        put_all(&tier, &chain(name, 8));
        let _ = flush(&tier);
    }
    assert_eq!((tier.stored_prefix(&keys(&precious)), tier.session(&[1; 32])), (0, None));
}

#[test]
fn a_prefix_is_never_evicted_before_what_follows_from_it() {
    let files = MemoryFiles::default();
    let (tier, _) = open(&files, 1 << 17);
    for name in 0..60 {
        let long = chain(name, 30);
        put_all(&tier, &long);
        let _ = flush(&tier);
        for earlier in 0..=name {
            let keys = keys(&chain(earlier, 30));
            let there = tier.stored_prefix(&keys);
            assert!(keys[there..].iter().all(|key| !tier.contains(key)), "a hole in chain {earlier}");
        }
    }
}

#[test]
fn a_chain_longer_than_the_limit_keeps_its_beginning_and_harms_nothing() {
    let files = MemoryFiles::default();
    let limit = 1 << 16;
    let (tier, _) = open(&files, limit);
    let long = chain(1, 300);
    for known in &long {
        known.put(&tier);
    }
    let report = flush(&tier);
    assert!(!report.durable && report.missing_snapshots > 0);
    let there = tier.stored_prefix(&keys(&long));
    assert!(there > 20, "{there}");
    assert_eq!(fetch(&tier, &long[..there]), (there, FetchPoll::Done));
    assert!(files.peak() <= limit);
    tier.forget_missing();
    put_all(&tier, &chain(2, 20));
    assert!(flush(&tier).durable);
}

#[test]
fn a_lower_limit_holds_from_the_start_on() {
    let files = MemoryFiles::default();
    {
        let (tier, _) = open(&files, 1 << 20);
        put_all(&tier, &chain(1, 200));
        put_all(&tier, &chain(2, 200));
        assert!(flush(&tier).durable);
    }
    let limit = 1 << 17;
    assert!(files.bytes() > limit);
    let (tier, report) = open(&files, limit);
    assert!(report.bytes <= limit && files.bytes() <= limit, "{report:?}");
    assert!(report.entries > 20, "{report:?}");
    assert_eq!(fetch(&tier, &chain(2, 10)), (10, FetchPoll::Done));
}

#[test]
fn session_notes_do_not_fill_the_log() {
    let files = MemoryFiles::default();
    let limit = 1 << 16;
    let (tier, _) = open(&files, limit);
    let long = chain(1, 10);
    put_all(&tier, &long);
    for turn in 0..3000_u64 {
        let at = (turn % 10) as usize;
        tier.note_session([(turn % 7) as u8; 32], long[at].key, 4 * (at as u64 + 1));
        if turn % 50 == 0 {
            let _ = flush(&tier);
        }
    }
    assert!(flush(&tier).durable);
    assert!(files.peak() <= limit);
    assert_eq!(fetch(&tier, &long), (10, FetchPoll::Done));
    assert_eq!(tier.status().sessions, 7);
}
