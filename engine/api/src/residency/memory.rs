//! What the machine has and what this process takes.

use std::sync::{Mutex, PoisonError};

use sysinfo::{CGroupLimits, MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

/// Asks for memory. Figures that the system does not give are `None`.
pub trait MemoryMeter: Send + Sync {
    /// Bytes of memory that this process takes.
    fn process(&self) -> Option<u64>;
    /// Bytes that programs could still take without anything being paged out.
    fn available(&self) -> Option<u64>;
    /// Bytes that there are in all, for this process.
    fn total(&self) -> Option<u64>;
}

/// The system's own figures; limits of a container included.
#[derive(Debug)]
pub struct SystemMemory {
    system: Mutex<Option<System>>,
    pid: Option<Pid>,
}

impl SystemMemory {
    /// A meter of this process.
    #[must_use]
    pub fn new() -> Self {
        let system = System::new_with_specifics(RefreshKind::nothing()).ok();
        Self { system: Mutex::new(system), pid: sysinfo::get_current_pid().ok() }
    }

    fn ask<T>(&self, question: impl FnOnce(&mut System) -> Option<T>) -> Option<T> {
        question(self.system.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?)
    }
}

impl Default for SystemMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryMeter for SystemMemory {
    fn process(&self) -> Option<u64> {
        let pid = self.pid?;
        self.ask(|system| {
            let what = ProcessRefreshKind::nothing().with_memory();
            system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
            system.process(pid).map(sysinfo::Process::memory)
        })
    }

    fn available(&self) -> Option<u64> {
        let pid = self.pid;
        self.ask(|system| {
            system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
            // What a container's files take of its page cache can be had back, so only its programs count.
            let group = limits(system, pid).map(|group| group.total_memory.saturating_sub(group.rss));
            at_most(system.available_memory(), group)
        })
    }

    fn total(&self) -> Option<u64> {
        let pid = self.pid;
        self.ask(|system| {
            system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
            let group = limits(system, pid).map(|group| group.total_memory);
            at_most(system.total_memory(), group)
        })
    }
}

/// What the container that this process runs in allows, if it runs in one.
fn limits(system: &mut System, pid: Option<Pid>) -> Option<CGroupLimits> {
    let pid = pid?;
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    system.process(pid)?.cgroup_limits()
}

fn at_most(machine: u64, group: Option<u64>) -> Option<u64> {
    Some(group.map_or(machine, |group| machine.min(group))).filter(|_| machine > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_bytes_and_grow_with_what_is_taken() {
        let meter = SystemMemory::new();
        let before = meter.process().unwrap();
        assert!(before > 1 << 20, "{before}");
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = meter.process().unwrap();
        assert!(after >= before + (48 << 20), "{before} {after}");
        assert_eq!(taken.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 8);
        let (total, available) = (meter.total().unwrap(), meter.available().unwrap());
        assert!(available < total && total > after, "{available} {total}");
    }
}
