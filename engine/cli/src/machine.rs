//! What a benchmark must tell about the machine it ran on.

use serde::Serialize;

/// Facts about this machine. What cannot be found out is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            processor: processor_name(&read("/proc/cpuinfo")),
            physical_cores: linnet_kernels::pool::physical_cores(),
            logical_cores: std::thread::available_parallelism().map_or(1, usize::from),
            instruction_set: format!("{:?}", linnet_kernels::Isa::detect()).to_lowercase(),
            memory_bytes: memory_bytes(&read("/proc/meminfo")),
        }
    }
}

/// From Linux's `/proc/cpuinfo`, on x86 ("model name") and some Arm boards ("Model").
fn processor_name(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().map(str::trim) == Some(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    field("model name").or_else(|| field("Model"))
}

/// From Linux's `/proc/meminfo`.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_proc() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 25\nmodel name\t: AMD EPYC 7763\n";
        assert_eq!(processor_name(cpuinfo), Some("AMD EPYC 7763".to_owned()));
        assert_eq!(processor_name("processor\t: 0\nModel\t\t: Raspberry Pi 5\n"), Some("Raspberry Pi 5".to_owned()));
        assert_eq!(processor_name(""), None);
        assert_eq!(memory_bytes("MemTotal:       24619208 kB\nMemFree: 1 kB\n"), Some(24_619_208 * 1024));
    }
}
