//! One persistent pool of threads with a cheap barrier.
//!
//! A parallel region is announced by publishing a job under a new epoch. Idle workers spin for a short while, so that a
//! region that follows closely starts within about a microsecond, and park afterwards, so that an idle program uses no
//! processor time. Work is claimed task by task from an atomic counter: a worker that the system has taken off its core
//! delays a region by the one task it holds, and a worker that has not woken up yet delays it not at all.
#![allow(unsafe_code)]

use std::{
    any::Any,
    cell::UnsafeCell,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

/// How long a worker watches for the next region before it parks.
const SPIN: Duration = Duration::from_micros(40);
/// Polls between two looks at the clock while spinning.
const POLLS_PER_CLOCK: u32 = 64;
/// Polls of the caller, waiting for the last tasks, before it begins to yield its core.
const POLLS_BEFORE_YIELD: u32 = 4096;

/// Set in the state while nobody may join the region.
const CLOSED: u64 = 1 << 31;
/// The bits of the state that count the workers inside the region.
const ACTIVE: u64 = CLOSED - 1;
/// The epoch stands above those.
const EPOCH_SHIFT: u32 = 32;

/// A fixed set of threads that work through tasks together; the caller takes part.
pub struct ThreadPool {
    threads: usize,
    shared: Arc<Shared>,
    /// Held by the caller whose region is running.
    region: Mutex<()>,
    workers: Vec<Worker>,
}

struct Worker {
    thread: Thread,
    handle: Option<JoinHandle<()>>,
}

/// A value on cache lines of its own (two: adjacent lines are fetched in pairs).
#[repr(align(128))]
struct Apart<T>(T);

struct Shared {
    /// Epoch, [`CLOSED`], and the number of workers inside: one word, so that joining is one compare-and-swap.
    state: Apart<AtomicU64>,
    /// The next task to claim.
    next: Apart<AtomicUsize>,
    /// Which workers sleep and need a wake-up call.
    parked: Vec<Apart<AtomicBool>>,
    stop: AtomicBool,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

// SAFETY: `job` is written only by the holder of `ThreadPool::region` while the state is CLOSED with nobody active, and
// read only by workers that have joined (an acquire of the state that published it). The closure it points to is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; the raw pointer in `job` is only ever used under that protocol.
unsafe impl Send for Shared {}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ThreadPool").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// A pool of `threads` workers in all (at least one: the caller). Where the system refuses a thread, the pool is
    /// smaller: see [`ThreadPool::threads`].
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let wanted = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            state: Apart(AtomicU64::new(CLOSED)),
            next: Apart(AtomicUsize::new(0)),
            parked: (0..wanted).map(|_| Apart(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let mut workers = Vec::with_capacity(wanted);
        for index in 0..wanted {
            let inner = Arc::clone(&shared);
            let spawned =
                thread::Builder::new().name(format!("linnet-kernel-{}", index + 1)).spawn(move || inner.worker(index));
            match spawned {
                Ok(handle) => workers.push(Worker { thread: handle.thread().clone(), handle: Some(handle) }),
                Err(_) => break,
            }
        }
        Self { threads: workers.len() + 1, shared, region: Mutex::new(()), workers }
    }

    /// How many threads share the work, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work(worker)` once for every worker number below [`ThreadPool::threads`] and returns when all are done.
    ///
    /// One thread may take several numbers when another is late, so `work` must not wait for other workers.
    ///
    /// # Panics
    /// A panic in `work` is raised again here, after all others have left.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        self.for_each(self.threads, work);
    }

    /// Runs `work(task)` once for every task below `tasks`, claimed in rising order, and returns when all are done.
    ///
    /// Runs on the caller alone when there is one task or one thread, or when this pool is already busy (a region inside
    /// a region, or two threads sharing the pool).
    ///
    /// # Panics
    /// A panic in `work` is raised again here, after all others have left; tasks not yet claimed are skipped.
    pub fn for_each(&self, tasks: usize, work: &(dyn Fn(usize) + Sync)) {
        let region = if tasks <= 1 || self.threads == 1 {
            None
        } else {
            match self.region.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        };
        if region.is_none() {
            (0..tasks).for_each(work);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. The region is closed and empty of workers before this call returns, so
        // no one uses the pointer after `work` ends.
        let work: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        let job = Job { work, tasks };
        // SAFETY: the region lock is held and the previous region ended CLOSED with nobody active: no reader exists.
        unsafe { *shared.job.get() = Some(job) };
        shared.next.0.store(0, Ordering::Relaxed);
        let epoch = (shared.state.0.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        shared.state.0.store(epoch << EPOCH_SHIFT, Ordering::SeqCst);
        for (worker, parked) in self.workers.iter().zip(&shared.parked).take(tasks - 1) {
            if parked.0.load(Ordering::SeqCst) && parked.0.swap(false, Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
        shared.work_through(job);
        shared.state.0.fetch_or(CLOSED, Ordering::AcqRel);
        let mut polls = 0u32;
        while shared.state.0.load(Ordering::Acquire) & ACTIVE != 0 {
            if polls < POLLS_BEFORE_YIELD {
                polls += 1;
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(region);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                // A worker catches the panics of tasks, so joining cannot fail.
                let _ = handle.join();
            }
        }
    }
}

impl Shared {
    /// Claims and runs tasks until none is left. A panic ends the region early and is kept for the caller.
    fn work_through(&self, job: Job) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller of `for_each` keeps the closure alive until everyone has left the region, and this
            // thread is inside it (it is that caller, or it has joined).
            let work = unsafe { &*job.work };
            loop {
                let task = self.next.0.fetch_add(1, Ordering::Relaxed);
                if task >= job.tasks {
                    break;
                }
                work(task);
            }
        }));
        if let Err(payload) = outcome {
            self.next.0.store(job.tasks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    fn worker(&self, index: usize) {
        let mut seen = 0;
        loop {
            let Some(state) = self.wait_for_region(index, seen) else { return };
            seen = state >> EPOCH_SHIFT;
            let mut current = state;
            // Join, unless the region closes (or ends and another begins) first.
            let joined = loop {
                if current & CLOSED != 0 || current >> EPOCH_SHIFT != seen {
                    break false;
                }
                match self.state.0.compare_exchange_weak(current, current + 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break true,
                    Err(now) => current = now,
                }
            };
            if joined {
                // SAFETY: joining acquired the state that published the job, and the caller does not touch the job
                // until this worker has left.
                let job = unsafe { *self.job.get() };
                if let Some(job) = job {
                    self.work_through(job);
                }
                self.state.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Waits for an epoch other than `seen`; None when the pool is dropped.
    fn wait_for_region(&self, index: usize, seen: u64) -> Option<u64> {
        let parked = &self.parked[index].0;
        let mut begun: Option<Instant> = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                let state = self.state.0.load(Ordering::Acquire);
                if state >> EPOCH_SHIFT != seen {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            if begun.get_or_insert_with(Instant::now).elapsed() < SPIN {
                continue;
            }
            // The flag goes up before the last look at the state and the caller looks at the flag after publishing, so
            // one of the two always sees the other.
            parked.store(true, Ordering::SeqCst);
            let state = self.state.0.load(Ordering::SeqCst);
            if state >> EPOCH_SHIFT == seen && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            parked.store(false, Ordering::SeqCst);
            begun = None;
        }
    }
}

/// The physical cores this process may use: what compute-bound work profits from. Never more than the scheduler or a
/// container limit allows, never less than one.
#[must_use]
pub fn physical_cores() -> usize {
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    num_cpus::get_physical().clamp(1, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_task_runs_exactly_once_over_many_regions() {
        for threads in [1, 2, 3, 5] {
            let pool = ThreadPool::new(threads);
            for round in 0..2000 {
                let tasks = round % 17;
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn run_visits_every_worker_number() {
        let pool = ThreadPool::new(4);
        let counts: Vec<AtomicUsize> = (0..pool.threads()).map(|_| AtomicUsize::new(0)).collect();
        pool.run(&|worker| {
            counts[worker].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn a_region_after_the_workers_parked_still_uses_them() {
        let pool = ThreadPool::new(2);
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(2));
            let threads = Mutex::new(std::collections::HashSet::new());
            // Each task holds until both threads have shown up, which needs the parked one to wake.
            let arrived = AtomicUsize::new(0);
            pool.for_each(2, &|_| {
                threads.lock().unwrap().insert(thread::current().id());
                arrived.fetch_add(1, Ordering::SeqCst);
                let begun = Instant::now();
                while arrived.load(Ordering::SeqCst) < 2 && begun.elapsed() < Duration::from_secs(20) {
                    thread::yield_now();
                }
            });
            assert_eq!(threads.lock().unwrap().len(), 2);
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads);
            for _ in 0..50 {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    pool.for_each(64, &|task| assert!(task != 20, "task twenty"));
                }));
                let payload = outcome.expect_err("the panic must not be swallowed");
                assert!(payload.downcast_ref::<&str>().is_some_and(|text| text.contains("task twenty")));
                let sum = AtomicUsize::new(0);
                pool.for_each(100, &|task| {
                    sum.fetch_add(task, Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), 4950);
            }
        }
    }

    #[test]
    fn a_region_inside_a_region_runs_inline() {
        let pool = ThreadPool::new(3);
        let sum = AtomicUsize::new(0);
        pool.for_each(8, &|_| {
            pool.for_each(8, &|inner| {
                sum.fetch_add(inner, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 8 * 28);
    }

    #[test]
    fn two_callers_share_one_pool() {
        let pool = ThreadPool::new(2);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let sum = AtomicUsize::new(0);
                        pool.for_each(10, &|task| {
                            sum.fetch_add(task, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 45);
                    }
                });
            }
        });
    }

    #[test]
    fn physical_cores_is_between_one_and_what_is_allowed() {
        let cores = physical_cores();
        assert!(cores >= 1 && cores <= thread::available_parallelism().map_or(1, usize::from));
    }
}
