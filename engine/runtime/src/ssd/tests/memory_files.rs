//! A file system in memory that can fail at any operation, and can lose power: what was not synced is then kept, cut or
//! garbled by chance.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rand::Rng;

use crate::ssd::{FileSystem, SegmentFile};

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// With an error of this kind.
    Error(ErrorKind),
    /// A write writes only a part, which is no error. Other operations work.
    Short,
    /// A write writes a part and then fails.
    Torn(ErrorKind),
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    /// The directory as it is on the disk.
    synced_names: BTreeMap<PathBuf, Arc<Mutex<Content>>>,
    operations: u64,
    /// From this operation on, for so many operations, this happens.
    fault: Option<(u64, u64, Fault)>,
    capacity: Option<u64>,
    is_locked: bool,
    /// The most bytes that all files ever had.
    peak: u64,
}

#[derive(Debug, Default, Clone)]
struct Content {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

/// The file system.
#[derive(Debug, Clone, Default)]
pub(super) struct MemoryFiles(Arc<Mutex<State>>);

impl MemoryFiles {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Lets operations fail: `count` of them, from the `first` one from now on.
    pub(super) fn fail(&self, first: u64, count: u64, fault: Fault) {
        let mut state = self.lock();
        state.fault = Some((state.operations + first, count, fault));
    }

    pub(super) fn heal(&self) {
        self.lock().fault = None;
    }

    pub(super) fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// How much fits on the disk.
    pub(super) fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lock().used()
    }

    pub(super) fn peak(&self) -> u64 {
        self.lock().peak
    }

    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.lock().files.keys().cloned().collect()
    }

    /// Adds a file that somebody else has put there.
    pub(super) fn add(&self, path: &Path, bytes: Vec<u8>) {
        let content = Arc::new(Mutex::new(Content { synced: bytes.clone(), bytes }));
        let mut state = self.lock();
        state.files.insert(path.to_owned(), Arc::clone(&content));
        state.synced_names.insert(path.to_owned(), content);
    }

    /// A file's bytes, to be changed.
    pub(super) fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let file = Arc::clone(&self.lock().files[path]);
        let mut content = file.lock().unwrap();
        change(&mut content.bytes);
        content.synced = content.bytes.clone();
    }

    /// What the disk holds after the process was killed: all that was written, but the write at hand may be torn.
    pub(super) fn kill(&self, random: &mut impl Rng) -> Self {
        let state = self.lock();
        let mut files = BTreeMap::new();
        for (path, content) in &state.files {
            let Content { mut bytes, synced } = content.lock().unwrap().clone();
            let is_last = Some(path) == state.files.keys().next_back();
            if is_last && random.random_bool(0.5) {
                bytes.truncate(random.random_range(synced.len()..=bytes.len()));
            }
            files.insert(path.clone(), bytes);
        }
        Self::of(files, state.capacity)
    }

    /// What the disk might hold after a power failure: synced bytes are there; of the others, any prefix, with any
    /// garbage in it; names that were not synced may be gone, or there with nothing in them.
    pub(super) fn lose_power(&self, random: &mut impl Rng) -> Self {
        let state = self.lock();
        let mut files = BTreeMap::new();
        let names: std::collections::BTreeSet<_> = state.files.keys().chain(state.synced_names.keys()).collect();
        for path in names {
            let (now, synced) = (state.files.get(path), state.synced_names.get(path));
            let survivor = match (now, synced) {
                (Some(now), Some(_)) => Some(now),
                // Made or removed, but not durably.
                (Some(one), None) | (None, Some(one)) => random.random_bool(0.5).then_some(one),
                (None, None) => None,
            };
            let Some(content) = survivor.map(|content| content.lock().unwrap().clone()) else { continue };
            let mut bytes = content.synced.clone();
            if content.bytes.len() > bytes.len() {
                let kept = random.random_range(bytes.len()..=content.bytes.len());
                let from = bytes.len();
                bytes.extend(&content.bytes[from..kept]);
                for _ in 0..random.random_range(0..4) {
                    if kept > from {
                        let at = random.random_range(from..kept);
                        let end = (at + random.random_range(1..64)).min(kept);
                        bytes[at..end].fill(random.random());
                    }
                }
            }
            files.insert(path.clone(), bytes);
        }
        Self::of(files, state.capacity)
    }

    fn of(files: BTreeMap<PathBuf, Vec<u8>>, capacity: Option<u64>) -> Self {
        let files: BTreeMap<_, _> = files
            .into_iter()
            .map(|(path, bytes)| (path, Arc::new(Mutex::new(Content { synced: bytes.clone(), bytes }))))
            .collect();
        let state = State { synced_names: files.clone(), files, capacity, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Counts an operation and says what happens to it.
    fn operate(&self) -> io::Result<Option<Fault>> {
        let mut state = self.lock();
        let now = state.operations;
        state.operations += 1;
        match state.fault {
            Some((first, count, fault)) if now >= first && now - first < count => match fault {
                Fault::Error(kind) => Err(kind.into()),
                fault => Ok(Some(fault)),
            },
            _ => Ok(None),
        }
    }
}

impl State {
    fn used(&self) -> u64 {
        self.files.values().map(|content| content.lock().unwrap().bytes.len() as u64).sum()
    }
}

struct Held(MemoryFiles);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.lock().is_locked = false;
    }
}

impl FileSystem for MemoryFiles {
    fn make_directory(&self, _: &Path) -> io::Result<()> {
        self.operate().map(drop)
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.operate()?;
        let mut state = self.lock();
        if state.is_locked {
            return Err(ErrorKind::WouldBlock.into());
        }
        state.is_locked = true;
        Ok(Box::new(Held(self.clone())))
    }

    fn list(&self, _: &Path) -> io::Result<Vec<OsString>> {
        self.operate()?;
        Ok(self.lock().files.keys().filter_map(|path| Some(path.file_name()?.to_owned())).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn SegmentFile>> {
        self.operate()?;
        let content = Arc::new(Mutex::new(Content::default()));
        let mut state = self.lock();
        if state.files.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.files.insert(path.to_owned(), Arc::clone(&content));
        Ok(Arc::new(MemoryFile { files: self.clone(), content }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn SegmentFile>> {
        self.operate()?;
        let content = self.lock().files.get(path).cloned().ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(MemoryFile { files: self.clone(), content }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operate()?;
        self.lock().files.remove(path).map(drop).ok_or(ErrorKind::NotFound.into())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.operate()?;
        let mut state = self.lock();
        state.synced_names = state.files.clone();
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        self.operate()?;
        let state = self.lock();
        Ok(state.capacity.unwrap_or(1 << 50).saturating_sub(state.used()))
    }
}

#[derive(Debug)]
struct MemoryFile {
    files: MemoryFiles,
    content: Arc<Mutex<Content>>,
}

impl SegmentFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        self.files.operate()?;
        Ok(self.content.lock().unwrap().bytes.len() as u64)
    }

    fn append(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let fault = self.files.operate()?;
        let mut state = self.files.lock();
        let wanted: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let room = state.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(state.used()) as usize);
        let count = wanted.len().min(room);
        let count = if fault.is_some() { count.div_ceil(2) } else { count };
        self.content.lock().unwrap().bytes.extend(&wanted[..count]);
        state.peak = state.peak.max(state.used());
        match fault {
            Some(Fault::Torn(kind)) => Err(kind.into()),
            _ if count == 0 && !wanted.is_empty() => Err(ErrorKind::StorageFull.into()),
            _ => Ok(count),
        }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let fault = self.files.operate()?;
        let content = self.content.lock().unwrap();
        let from = content.bytes.get(offset as usize..).unwrap_or_default();
        let count = from.len().min(into.len());
        let count = if fault.is_some() { count.div_ceil(2) } else { count };
        into[..count].copy_from_slice(&from[..count]);
        Ok(count)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.files.operate()?;
        let mut content = self.content.lock().unwrap();
        content.bytes.truncate(length as usize);
        content.synced.truncate(length as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.files.operate()?;
        let mut content = self.content.lock().unwrap();
        content.synced = content.bytes.clone();
        Ok(())
    }
}
