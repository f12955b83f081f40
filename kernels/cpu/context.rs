//! What every kernel needs to know about where it runs.

use crate::{Isa, matmul::BufferStore, pool::ThreadPool, scratch::Scratch, weight_memory::WeightMemory};

/// The instruction set and the threads that kernels run on. One per process or per model; never global.
#[derive(Debug)]
pub struct Context {
    isa: Isa,
    pool: ThreadPool,
    buffers: BufferStore,
    scratch: Scratch,
    weight_memory: WeightMemory,
}

impl Context {
    /// A context on the best instruction set of this machine with `threads` threads (the caller counts as one).
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::with_isa(Isa::detect(), threads)
    }

    /// A context on a chosen instruction set. An `isa` this machine lacks falls back to [`Isa::Scalar`].
    #[must_use]
    pub fn with_isa(isa: Isa, threads: usize) -> Self {
        let isa = if Isa::available().contains(&isa) { isa } else { Isa::Scalar };
        Self {
            isa,
            pool: ThreadPool::new(threads),
            buffers: BufferStore::default(),
            scratch: Scratch::default(),
            weight_memory: WeightMemory::default(),
        }
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads in use.
    #[must_use]
    pub fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Where matrices laid out for this context live.
    pub(crate) fn weight_memory(&self) -> &WeightMemory {
        &self.weight_memory
    }

    /// Memory that products use and give back, so that a step allocates nothing.
    pub(crate) fn buffers(&self) -> &BufferStore {
        &self.buffers
    }

    /// Floats that a kernel needs for a moment.
    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }
}
