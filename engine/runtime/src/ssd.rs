//! The prefix cache's tier on disk.
//!
//! It keeps blocks of keys and values in append-only segment files, each under the key that the prefix cache gives it
//! (a hash of the namespace, the block before it and its own tokens), so that what several prefixes share is stored
//! once. It knows no model and computes nothing. What must hold:
//!
//! * The engine never waits: [`SsdTier::put`] queues or drops, [`SsdTier::fetch`] answers with a handle to poll, a thread
//!   writes and others read. No lock is held while a file is touched.
//! * A block is served only if its checksums hold. A damaged one is dropped, with all that follow from it.
//! * The files never exceed the limit, whatever is being written or compacted.
//! * What a [`flush`](SsdTier::flush) called durable survives a power failure until it is evicted.
//! * Whatever the disk does, the process goes on; [`SsdTier::status`] says what is wrong and what helps.
//!
//! `docs/decisions/ssd-tier.md` has the format and what was weighed.

mod codec;
mod compaction;
mod fetch;
mod file_system;
mod flush;
mod index;
mod log;
mod options;
mod priority;
mod reader;
mod record;
mod report;
mod segment;
mod shared;
mod state;
#[cfg(test)]
mod tests;
mod writer;

pub use codec::CodecError;
pub use fetch::{Fetch, FetchError, FetchPoll, FetchedBlock};
pub use file_system::{FileSystem, LocalFileSystem, SegmentFile};
pub use flush::FlushTicket;
pub use options::SsdOptions;
pub use report::{DiscardReason, Discarded, DropReason, FlushReport, OpenReport, PutOutcome, SsdStatus};
pub use state::TierState;

use linnet_compute::KvBlock;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shared::Shared;

/// What a block is found by: a hash of the namespace, the key of the block before it and the block's tokens. Equal keys
/// must mean equal contents.
pub type BlockKey = [u8; 32];

/// The newest checkpoint of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionNote {
    /// The last block of it that was stored.
    pub key: BlockKey,
    /// How many tokens it has, up to the end of that block.
    pub tokens: u64,
}

/// Why a tier could not be made. Troubles with the disk are no errors but a [`TierState`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SsdError {
    /// A thread could not be started.
    #[error("cannot start a thread for the cache on disk: {0}; close other programs or turn the cache off")]
    Thread(#[source] std::io::Error),
}

/// The tier. Dropping it stops its threads after the operation at hand; what waits to be written then is lost, so
/// [`flush`](Self::flush) first.
#[derive(Debug)]
pub struct SsdTier {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl SsdTier {
    /// Opens the directory, makes it if needed, and finds what is stored in it. A directory that cannot be used gives a
    /// tier whose [`status`](Self::status) says so, and which tries again from time to time.
    ///
    /// # Errors
    /// Only when threads cannot be started.
    pub fn open(options: SsdOptions) -> Result<(Self, OpenReport), SsdError> {
        Self::open_on(options, Arc::new(LocalFileSystem))
    }

    /// As [`open`](Self::open), on a file system of the caller's.
    ///
    /// # Errors
    /// Only when threads cannot be started.
    pub fn open_on(options: SsdOptions, files: Arc<dyn FileSystem>) -> Result<(Self, OpenReport), SsdError> {
        let readers = options.reader_threads.max(1);
        let shared = Arc::new(Shared::new(options));
        let mut writer = writer::Writer::new(Arc::clone(&shared), files);
        let report = writer.open();
        let mut tier = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        tier.spawn("linnet-ssd-write", move || writer.run())?;
        for _ in 0..readers {
            let shared = Arc::clone(&shared);
            tier.spawn("linnet-ssd-read", move || reader::run(&shared))?;
        }
        Ok((tier, report))
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), SsdError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body).map_err(SsdError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Queues a block to be written. `parent` is the key of the block before it: `None` exactly if the block starts at
    /// the first token. Parents must be put before their children. Costs a few microseconds and never waits.
    pub fn put(
        &self,
        key: BlockKey,
        parent: Option<BlockKey>,
        tokens: impl Into<Arc<[u32]>>,
        block: Arc<KvBlock>,
    ) -> PutOutcome {
        self.shared.put(key, parent, tokens.into(), block)
    }

    /// Whether a block is stored, or waits to be written.
    #[must_use]
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.shared.lock().index.contains(key)
    }

    /// How many of a chain's keys, from the first on, are stored or wait to be written. They count as used now, which is
    /// what keeps them from being evicted.
    #[must_use]
    pub fn stored_prefix(&self, keys: &[BlockKey]) -> usize {
        self.shared.lock().index.touch_prefix(keys)
    }

    /// Asks for blocks, in the order of their chain. They are read on another thread, while the caller goes on.
    #[must_use]
    pub fn fetch(&self, keys: Vec<BlockKey>) -> Fetch {
        fetch::begin(&self.shared, keys)
    }

    /// Notes that a session, known by a hash of its name, has come as far as the block `key`, at `tokens` tokens. Costs
    /// nothing where that is known already.
    pub fn note_session(&self, name: [u8; 32], key: BlockKey, tokens: u64) {
        self.shared.note_session(name, Some(SessionNote { key, tokens }));
    }

    /// The newest checkpoint of a session that is still stored.
    #[must_use]
    pub fn session(&self, name: &[u8; 32]) -> Option<SessionNote> {
        self.shared.lock().index.session(name)
    }

    /// Forgets a session, but none of its blocks. Whether it was known.
    pub fn close_session(&self, name: [u8; 32]) -> bool {
        let is_known = self.session(&name).is_some();
        self.shared.note_session(name, None);
        is_known
    }

    /// Makes everything that was put so far durable, and waits for it, but no longer than `timeout`.
    #[must_use]
    pub fn flush(&self, timeout: Duration) -> FlushReport {
        self.begin_flush().wait(timeout)
    }

    /// Starts to make everything that was put so far durable.
    #[must_use]
    pub fn begin_flush(&self) -> FlushTicket {
        flush::begin(&self.shared)
    }

    /// Waits until `bytes` more fit into the queue, but no longer than `timeout`. Whether they fit. For callers that may
    /// wait, such as a shutdown that writes all that is in RAM.
    #[must_use]
    pub fn wait_for_room(&self, bytes: usize, timeout: Duration) -> bool {
        self.shared.wait_for_room(bytes, Instant::now() + timeout)
    }

    /// Stops counting blocks as missing that were dropped or failed: nobody holds them any more. How many there were.
    pub fn forget_missing(&self) -> usize {
        std::mem::take(&mut self.shared.lock().missing).len()
    }

    /// How the tier is.
    #[must_use]
    pub fn status(&self) -> SsdStatus {
        self.shared.lock().status(&self.shared.options)
    }
}

impl Drop for SsdTier {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to tell.
            let _ = thread.join();
        }
    }
}
