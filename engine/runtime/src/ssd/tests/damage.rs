//! What is damaged, torn or foreign is never served.

use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::memory_files::MemoryFiles;
use super::world::{chain, fetch, flush, open, put_all};
use crate::ssd::record::{BlockHeader, RecordHeader, segment_header};
use crate::ssd::segment::file_name;
use crate::ssd::{DiscardReason, FetchPoll, PutOutcome, TierState};

const MIB: u64 = 1 << 20;

fn filled(length: u64) -> MemoryFiles {
    let files = MemoryFiles::default();
    let (tier, _) = open(&files, MIB);
    put_all(&tier, &chain(1, length));
    assert!(flush(&tier).durable);
    drop(tier);
    files
}

fn copy(files: &MemoryFiles) -> MemoryFiles {
    files.kill(&mut ChaCha8Rng::seed_from_u64(0))
}

#[test]
fn no_changed_byte_is_ever_served_and_all_before_it_still_is() {
    let original = filled(3);
    let long = chain(1, 3);
    let path = original.names().remove(0);
    let length = original.bytes() as usize;
    let record = (length - 32) / 3;
    for at in (0..length).step_by(5) {
        let files = copy(&original);
        files.change(&path, |bytes| bytes[at] ^= 0x40);
        let (tier, _) = open(&files, MIB);
        let (count, end) = fetch(&tier, &long);
        let expected = if at < 32 { 0 } else { (at - 32) / record };
        assert_eq!(count, expected, "byte {at}");
        assert!(matches!(end, FetchPoll::Failed(_)), "byte {at}: {end:?}");
        // The block is computed again and stored again.
        assert_eq!(long[count].put(&tier), PutOutcome::Queued, "byte {at}");
        assert!(flush(&tier).durable);
        assert_eq!(fetch(&tier, &long[..=count]), (count + 1, FetchPoll::Done), "byte {at}");
    }
}

#[test]
fn bytes_that_change_under_a_running_tier_are_noticed() {
    let files = filled(5);
    let long = chain(1, 5);
    let (tier, _) = open(&files, MIB);
    let path = files.names().remove(0);
    files.change(&path, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
    let (count, end) = fetch(&tier, &long);
    assert_eq!(count, 2);
    assert!(matches!(end, FetchPoll::Failed(_)));
    let status = tier.status();
    assert_eq!((status.corrupt, status.entries), (1, 2), "what follows a damaged block cannot be found any more");
}

#[test]
fn a_torn_tail_is_cut_off_at_every_byte() {
    let original = filled(2);
    let long = chain(1, 2);
    let path = original.names().remove(0);
    let length = original.bytes() as usize;
    for end in 0..length {
        let files = copy(&original);
        files.change(&path, |bytes| bytes.truncate(end));
        let (tier, report) = open(&files, MIB);
        let whole = end.saturating_sub(32) / ((length - 32) / 2);
        assert_eq!(report.entries, whole, "cut to {end}");
        let is_whole = end == 32 || end == 32 + (length - 32) / 2;
        assert_eq!(report.discarded.is_empty(), is_whole, "cut to {end}: {report:?}");
        assert!(report.discarded.iter().all(|discarded| discarded.reason == DiscardReason::TornTail));
        put_all(&tier, &long[whole..]);
        assert!(flush(&tier).durable);
        drop(tier);
        let (tier, report) = open(&files, MIB);
        assert_eq!((report.discarded.len(), fetch(&tier, &long)), (0, (2, FetchPoll::Done)), "cut to {end}");
    }
}

#[test]
fn foreign_files_stay_and_files_of_another_format_go() {
    let files = filled(3);
    let path = files.names().remove(0);
    let folder = path.parent().unwrap_or(Path::new(""));
    let foreign = folder.join("holiday.jpg");
    let other_version = folder.join(file_name(9));
    let renamed = folder.join(file_name(10));
    files.add(&foreign, b"x".to_vec());
    files.add(&other_version, vec![7; 100]);
    files.add(&renamed, segment_header(11).to_vec());
    let (tier, report) = open(&files, MIB);
    assert_eq!(report.entries, 3);
    let reasons: Vec<_> = report.discarded.iter().map(|discarded| (discarded.file.clone(), discarded.reason)).collect();
    assert_eq!(
        reasons,
        [
            (foreign.clone(), DiscardReason::Foreign),
            (other_version.clone(), DiscardReason::UnknownFormat),
            (renamed.clone(), DiscardReason::UnknownFormat)
        ]
    );
    let names = files.names();
    assert!(names.contains(&foreign) && !names.contains(&other_version) && !names.contains(&renamed));
    assert_eq!(fetch(&tier, &chain(1, 3)), (3, FetchPoll::Done));
}

#[test]
fn records_that_nothing_leads_to_or_that_claim_the_impossible_are_not_taken() {
    let files = filled(2);
    let path = files.names().remove(0);
    let header = BlockHeader {
        key: [9; 32],
        parent: Some([8; 32]),
        start: 4,
        tokens: 4,
        meta_bytes: 0,
        payload_bytes: 0,
        meta_checksum: 0,
        payload_checksum: 0,
    };
    let known = chain(1, 1).remove(0).key;
    let records = [
        header,
        BlockHeader { key: [10; 32], parent: None, ..header },
        BlockHeader { key: [11; 32], parent: Some(known), start: 5, ..header },
        BlockHeader { key: [12; 32], parent: Some([12; 32]), start: 0, tokens: 0, ..header },
        BlockHeader { key: [13; 32], payload_bytes: u64::MAX, ..header },
    ];
    files.change(&path, |bytes| {
        bytes.extend(records.iter().flat_map(|record| RecordHeader::Block(*record).to_bytes(1)));
    });
    let (tier, report) = open(&files, MIB);
    assert_eq!((report.state, report.entries), (TierState::Ready, 2));
    let bytes = |reason| report.discarded.iter().filter(|one| one.reason == reason).map(|one| one.bytes).sum::<u64>();
    assert_eq!((bytes(DiscardReason::Unreachable), bytes(DiscardReason::TornTail)), (4 * 128, 128));
    assert_eq!(fetch(&tier, &chain(1, 2)), (2, FetchPoll::Done));
}

#[test]
fn a_reachable_record_that_lies_about_its_shapes_is_an_error_not_an_allocation() {
    let files = filled(1);
    let path = files.names().remove(0);
    let parent = chain(1, 1).remove(0);
    let mut child = chain(1, 2).remove(1);
    child.parent = Some(parent.key);
    let meta = [0xff; 64];
    let header = BlockHeader {
        key: child.key,
        parent: child.parent,
        start: 4,
        tokens: 4,
        meta_bytes: 64,
        payload_bytes: 0,
        meta_checksum: crate::ssd::record::checksum(&meta),
        payload_checksum: crate::ssd::codec::payload_checksum(std::iter::empty()),
    };
    files.change(&path, |bytes| {
        bytes.extend(RecordHeader::Block(header).to_bytes(1));
        bytes.extend(meta);
    });
    let (tier, report) = open(&files, MIB);
    assert_eq!(report.entries, 2);
    let (count, end) = fetch(&tier, &[parent, child]);
    assert_eq!(count, 1);
    assert!(matches!(end, FetchPoll::Failed(crate::ssd::FetchError::Damaged(_))), "{end:?}");
}

#[test]
fn sealed_segments_are_found_by_their_trailers_and_without_them() {
    let limit = 8 * MIB;
    let original = MemoryFiles::default();
    let long = chain(1, 1000);
    {
        let (tier, _) = open(&original, limit);
        put_all(&tier, &long);
        tier.note_session([1; 32], long[999].key, 4000);
        assert!(flush(&tier).durable);
    }
    let paths = original.names();
    assert!(paths.len() > 3, "{paths:?}");
    let files = copy(&original);
    let (tier, report) = open(&files, limit);
    assert_eq!((report.entries, report.discarded.as_slice()), (1000, [].as_slice()));
    // Far fewer than there are records: those of the last segment alone are walked over.
    assert!(files.operations() < 400, "{}", files.operations());
    assert_eq!(fetch(&tier, &long), (1000, FetchPoll::Done));
    drop(tier);
    // Whatever happens to a trailer, the records are there.
    for from_end in [1, 9, 17, 25, 33, 33 + 128, 1000] {
        let files = copy(&original);
        for path in &paths[..paths.len() - 1] {
            files.change(path, |bytes| {
                let at = bytes.len() - from_end;
                bytes[at] ^= 0x20;
            });
        }
        let (tier, report) = open(&files, limit);
        assert_eq!((report.state, report.entries), (TierState::Ready, 1000), "{from_end}");
        assert!(report.discarded.iter().all(|one| one.reason == DiscardReason::Damaged), "{from_end}: {report:?}");
        assert_eq!(report.discarded.len(), paths.len() - 1);
        assert_eq!(fetch(&tier, &long), (1000, FetchPoll::Done), "{from_end}");
    }
}
