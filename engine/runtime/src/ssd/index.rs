//! What is stored and where: the tier's memory of its files. Nothing here touches a file.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use linnet_compute::KvBlock;

use super::file_system::SegmentFile;
use super::record::{BlockHeader, RECORD_HEADER, SEGMENT_HEADER};
use super::{BlockKey, SessionNote};

/// Sessions beyond this are forgotten, those first that were noted longest ago.
pub(super) const MOST_SESSIONS: usize = 4096;

/// Blocks, sessions and segments.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<BlockKey, Entry>,
    sessions: HashMap<[u8; 32], Session>,
    pub(super) segments: BTreeMap<u64, Segment>,
    /// Bytes of all files, those included whose removal is under way.
    pub(super) bytes: u64,
    clock: u64,
}

/// One block.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) parent: Option<BlockKey>,
    /// The position of its first token.
    pub(super) start: u64,
    pub(super) tokens: u32,
    /// How many entries follow directly from it. It cannot be evicted before them: they could not be found any more.
    children: usize,
    used: u64,
    pub(super) place: Place,
}

impl Entry {
    /// The position after its last token.
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.tokens)
    }
}

/// Where a block is.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In memory, waiting to be written.
    Queued(Arc<QueuedBlock>),
    /// In a segment.
    Stored(Location),
}

/// A block that waits to be written.
#[derive(Debug)]
pub(super) struct QueuedBlock {
    pub(super) tokens: Arc<[u32]>,
    pub(super) block: Arc<KvBlock>,
    /// Bytes of its keys and values.
    pub(super) bytes: usize,
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Location {
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// One file.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) file: Arc<dyn SegmentFile>,
    pub(super) length: u64,
    /// Up to where it is durable.
    pub(super) synced: u64,
    /// Bytes of records that are still wanted.
    pub(super) live: u64,
    /// Bytes of its trailer, once it is sealed.
    pub(super) trailer: u64,
}

impl Segment {
    /// Bytes that could be had back.
    pub(super) fn garbage(&self) -> u64 {
        let needed = self.live + self.trailer + SEGMENT_HEADER as u64;
        if self.live == 0 { self.length } else { self.length.saturating_sub(needed) }
    }
}

#[derive(Debug)]
struct Session {
    note: Option<SessionNote>,
    used: u64,
    /// Where the newest note is that was written: perhaps not the newest yet. `None`: none was.
    location: Option<Location>,
}

/// A record that is still wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Block(BlockKey),
    Session([u8; 32]),
}

impl Index {
    /// The index of segments that hold such blocks and session notes, the latter in the order in which they were
    /// written. Gives also the blocks that nothing leads to.
    pub(super) fn restore(
        segments: BTreeMap<u64, Segment>,
        blocks: &[(Location, BlockHeader)],
        notes: &[(Location, [u8; 32], Option<SessionNote>)],
    ) -> (Self, Vec<Location>) {
        let bytes = segments.values().map(|segment| segment.length).sum();
        let mut index = Self { segments, bytes, ..Self::default() };
        // A block that was copied while its segment was compacted may be there twice; the later copy counts.
        let mut newest: HashMap<BlockKey, (Location, BlockHeader)> = HashMap::new();
        for (location, header) in blocks {
            let known = newest.entry(header.key).or_insert((*location, *header));
            if known.0 < *location {
                *known = (*location, *header);
            }
        }
        let mut blocks: Vec<_> = newest.into_values().collect();
        blocks.sort_unstable_by_key(|(location, _)| *location);
        // What was written last counts as used last.
        let mut ranked: Vec<_> = blocks.into_iter().zip(1..).collect();
        let last = ranked.len() as u64;
        ranked.sort_by_key(|((_, header), _)| header.start);
        let mut unreachable = Vec::new();
        for ((location, header), used) in ranked {
            let expected = match header.parent {
                Some(parent) => index.get(&parent).map(Entry::end),
                None => Some(0),
            };
            if expected != Some(header.start) {
                unreachable.push(location);
                continue;
            }
            index.insert(header.key, header.parent, header.start, header.tokens, Place::Stored(location));
            if let Some(entry) = index.entries.get_mut(&header.key) {
                entry.used = used;
            }
        }
        index.clock = index.clock.max(last);
        for (location, name, note) in notes {
            // Where the newest checkpoint is gone, the one before it may still be there.
            if note.is_none_or(|note| index.contains(&note.key)) {
                index.note_session(*name, *note);
                index.move_session(name, None, *location);
            }
        }
        (index, unreachable)
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn session_count(&self) -> usize {
        self.sessions.values().filter(|session| session.note.is_some()).count()
    }

    pub(super) fn contains(&self, key: &BlockKey) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn get(&self, key: &BlockKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// How many of a chain's first keys are there. They count as used now.
    pub(super) fn touch_prefix(&mut self, keys: &[BlockKey]) -> usize {
        let now = self.tick();
        let known = keys.iter().map_while(|key| {
            self.entries.get_mut(key)?.used = now;
            Some(())
        });
        known.count()
    }

    /// Adds a block whose parent is known, and which is not known itself.
    pub(super) fn insert(&mut self, key: BlockKey, parent: Option<BlockKey>, start: u64, tokens: u32, place: Place) {
        let used = self.tick();
        if let Some(parent) = parent.and_then(|parent| self.entries.get_mut(&parent)) {
            parent.children += 1;
        }
        if let Place::Stored(location) = &place {
            self.add_live(*location);
        }
        self.entries.insert(key, Entry { parent, start, tokens, children: 0, used, place });
    }

    /// Says where a block is now. Its old place is garbage then, or its new one if the block is not wanted any more.
    pub(super) fn set_location(&mut self, key: &BlockKey, from: Option<Location>, to: Location) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let is_as_expected = match (&entry.place, from) {
            (Place::Queued(_), None) => true,
            (Place::Stored(place), Some(from)) => *place == from,
            _ => false,
        };
        if is_as_expected {
            entry.place = Place::Stored(to);
            self.add_live(to);
            if let Some(from) = from {
                self.remove_live(from);
            }
        }
        is_as_expected
    }

    fn add_live(&mut self, location: Location) {
        if let Some(segment) = self.segments.get_mut(&location.segment) {
            segment.live += location.bytes;
        }
    }

    fn remove_live(&mut self, location: Location) {
        if let Some(segment) = self.segments.get_mut(&location.segment) {
            segment.live = segment.live.saturating_sub(location.bytes);
        }
    }

    /// Forgets a block. Its children, if any, stay: see to them first.
    fn remove(&mut self, key: &BlockKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        if let Some(parent) = entry.parent.and_then(|parent| self.entries.get_mut(&parent)) {
            parent.children -= 1;
        }
        if let Place::Stored(location) = entry.place {
            self.remove_live(location);
        }
        Some(entry)
    }

    /// Forgets a block and all that follow from it. What was forgotten.
    pub(super) fn remove_tree(&mut self, key: &BlockKey) -> Vec<(BlockKey, Entry)> {
        let mut removed = Vec::new();
        let Some(root) = self.remove(key) else { return removed };
        let has_children = root.children > 0;
        removed.push((*key, root));
        if !has_children {
            return removed;
        }
        let mut children: HashMap<BlockKey, Vec<BlockKey>> = HashMap::new();
        for (key, entry) in &self.entries {
            if let Some(parent) = entry.parent {
                children.entry(parent).or_default().push(*key);
            }
        }
        let mut rest = vec![*key];
        while let Some(key) = rest.pop() {
            for child in children.remove(&key).unwrap_or_default() {
                rest.push(child);
                removed.extend(self.remove(&child).map(|entry| (child, entry)));
            }
        }
        removed
    }

    /// Forgets stored blocks until they made so many bytes of garbage, those first that were used longest ago, but never
    /// one before those that follow from it. How many were forgotten.
    pub(super) fn evict(&mut self, bytes: u64) -> u64 {
        let is_evictable = |entry: &Entry| entry.children == 0 && matches!(entry.place, Place::Stored(_));
        let rank = |key: &BlockKey, entry: &Entry| Reverse((entry.used, Reverse(entry.start), *key));
        let mut leaves: BinaryHeap<_> =
            self.entries.iter().filter(|(_, entry)| is_evictable(entry)).map(|(key, entry)| rank(key, entry)).collect();
        let (mut freed, mut count) = (0, 0);
        while freed < bytes {
            let Some(Reverse((_, _, key))) = leaves.pop() else { break };
            let Some(entry) = self.remove(&key) else { continue };
            count += 1;
            if let Place::Stored(location) = entry.place {
                freed += location.bytes;
            }
            let parent = entry.parent.and_then(|key| self.entries.get(&key).map(|entry| (key, entry)));
            if let Some((key, entry)) = parent.filter(|(_, entry)| is_evictable(entry)) {
                leaves.push(rank(&key, entry));
            }
        }
        count
    }

    /// The segment with the most garbage, and how much.
    pub(super) fn fullest_of_garbage(&self) -> Option<(u64, u64)> {
        let candidates = self.segments.iter().map(|(number, segment)| (segment.garbage(), *number));
        candidates.max().map(|(garbage, number)| (number, garbage))
    }

    /// All garbage.
    pub(super) fn garbage(&self) -> u64 {
        self.segments.values().map(Segment::garbage).sum()
    }

    /// The wanted records of a segment, in their order.
    pub(super) fn wanted_in(&self, segment: u64) -> Vec<(Location, Wanted)> {
        let blocks = self.entries.iter().filter_map(|(key, entry)| match entry.place {
            Place::Stored(location) => Some((location, Wanted::Block(*key))),
            Place::Queued(_) => None,
        });
        let sessions =
            self.sessions.iter().filter_map(|(name, session)| Some((session.location?, Wanted::Session(*name))));
        let mut wanted: Vec<_> = blocks.chain(sessions).filter(|(location, _)| location.segment == segment).collect();
        wanted.sort_unstable_by_key(|(location, _)| *location);
        wanted
    }

    /// Whether a record would survive a power failure.
    pub(super) fn is_durable(&self, location: &Location) -> bool {
        self.segments.get(&location.segment).is_some_and(|segment| location.offset + location.bytes <= segment.synced)
    }

    /// Blocks that lie in a segment from an offset on.
    pub(super) fn stored_from(&self, segment: u64, offset: u64) -> Vec<BlockKey> {
        let is_there = |entry: &Entry| match &entry.place {
            Place::Stored(location) => location.segment == segment && location.offset >= offset,
            Place::Queued(_) => false,
        };
        self.entries.iter().filter(|(_, entry)| is_there(entry)).map(|(key, _)| *key).collect()
    }

    /// Tokens of the longest prefix that is durable. A block whose parent is not durable counts for nothing.
    pub(super) fn longest_durable_prefix(&self) -> u64 {
        // Parents are written before their children and copied durably before they move, so a durable block has durable
        // parents.
        let durable = self.entries.values().filter(|entry| match &entry.place {
            Place::Stored(location) => self.is_durable(location),
            Place::Queued(_) => false,
        });
        durable.map(Entry::end).max().unwrap_or(0)
    }

    /// The newest checkpoint of a session, if its block is still there.
    pub(super) fn session(&self, name: &[u8; 32]) -> Option<SessionNote> {
        self.sessions.get(name)?.note.filter(|note| self.contains(&note.key))
    }

    /// Notes how far a session has come. Whether that is news, which has to be written.
    pub(super) fn note_session(&mut self, name: [u8; 32], note: Option<SessionNote>) -> bool {
        let used = self.tick();
        if let Some(session) = self.sessions.get_mut(&name) {
            session.used = used;
            let is_news = session.note != note;
            session.note = note;
            return is_news;
        }
        if note.is_none() {
            return false;
        }
        if self.sessions.len() >= MOST_SESSIONS {
            let oldest = self.sessions.iter().min_by_key(|(_, session)| session.used).map(|(name, _)| *name);
            if let Some(oldest) = oldest {
                self.forget_session(&oldest);
            }
        }
        self.sessions.insert(name, Session { note, used, location: None });
        true
    }

    /// Says where a session's newest written note is. With `from` only if it was there before: a copy must not take the
    /// place of what was written since.
    pub(super) fn move_session(&mut self, name: &[u8; 32], from: Option<Location>, to: Location) {
        let Some(session) = self.sessions.get_mut(name) else { return };
        if from.is_some() && session.location != from {
            return;
        }
        let old = session.location.replace(to);
        self.add_live(to);
        if let Some(old) = old {
            self.remove_live(old);
        }
    }

    /// Forgets a session altogether.
    pub(super) fn forget_session(&mut self, name: &[u8; 32]) {
        if let Some(location) = self.sessions.remove(name).and_then(|session| session.location) {
            self.remove_live(location);
        }
    }

    /// Forgets the sessions whose newest note lies in a segment from an offset on.
    pub(super) fn forget_sessions_from(&mut self, segment: u64, offset: u64) {
        self.sessions.retain(|_, session| {
            session.location.is_none_or(|location| location.segment != segment || location.offset < offset)
        });
    }

    /// Forgets the sessions whose block is gone.
    pub(super) fn forget_lost_sessions(&mut self) {
        let is_lost = |session: &Session| session.note.is_some_and(|note| !self.entries.contains_key(&note.key));
        let lost: Vec<_> =
            self.sessions.iter().filter(|(_, session)| is_lost(session)).map(|(name, _)| *name).collect();
        for name in lost {
            self.forget_session(&name);
        }
    }
}

/// Bytes of a session's record.
pub(super) const SESSION_BYTES: u64 = RECORD_HEADER as u64;
