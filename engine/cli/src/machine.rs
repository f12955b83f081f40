//! What a benchmark must tell about the machine it ran on.

use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Facts about this machine. What cannot be found out is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The operating system and its architecture.
    pub(crate) system: String,
    /// The processor's name.
    pub(crate) processor: Option<String>,
    /// Cores, not counting hardware threads.
    pub(crate) physical_cores: usize,
    /// Hardware threads.
    pub(crate) logical_cores: usize,
    /// The instruction set that the kernels use.
    pub(crate) instruction_set: String,
    /// Bytes of memory.
    pub(crate) memory_bytes: Option<u64>,
}

impl Machine {
    /// Looks around.
    pub(crate) fn detect() -> Self {
        let wanted = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let found = System::new_with_specifics(wanted).ok();
        let processor =
            found.as_ref().and_then(|system| system.cpus().first()).map(|cpu| cpu.brand().trim().to_owned());
        Self {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            processor: processor.filter(|name| !name.is_empty()),
            physical_cores: linnet_kernels::pool::physical_cores(),
            logical_cores: std::thread::available_parallelism().map_or(1, usize::from),
            instruction_set: format!("{:?}", linnet_kernels::Isa::detect()).to_lowercase(),
            memory_bytes: found.map(|system| system.total_memory()).filter(|bytes| *bytes > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_of_a_benchmark_is_named() {
        let machine = Machine::detect();
        // Only x86 and Macs are sure to name their processor.
        if cfg!(any(target_arch = "x86_64", target_os = "macos")) {
            assert!(machine.processor.as_deref().is_some_and(|name| name.len() > 2), "{machine:?}");
        }
        // Bytes, not kibibytes or pages.
        assert!(machine.memory_bytes.is_some_and(|bytes| bytes > 256 << 20), "{machine:?}");
        assert!((1..=machine.logical_cores).contains(&machine.physical_cores), "{machine:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_what_the_kernel_says() {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let kibibytes: u64 = total.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert_eq!(Machine::detect().memory_bytes, Some(kibibytes * 1024));
    }
}
