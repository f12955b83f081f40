//! What the figures were measured on.

use serde::Serialize;

/// Facts about this machine.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    /// The processor's own name, where the system tells it.
    processor: Option<String>,
    /// Cores, without the second threads that some have.
    physical_cores: usize,
    /// The processor architecture the binary was built for.
    architecture: &'static str,
    /// The instruction set the kernels use.
    kernels: String,
    /// The operating system.
    system: &'static str,
    /// Bytes of memory, where the system tells it.
    memory: Option<u64>,
}

impl Machine {
    pub(super) fn read() -> Self {
        Self {
            processor: processor(),
            physical_cores: linnet_compute::cpu::physical_cores(),
            architecture: std::env::consts::ARCH,
            kernels: linnet_compute::cpu::instruction_set(),
            system: std::env::consts::OS,
            memory: memory(),
        }
    }
}

fn processor() -> Option<String> {
    if let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        return Some(line.split_once(':')?.1.trim().to_owned());
    }
    sysctl("machdep.cpu.brand_string")
}

fn memory() -> Option<u64> {
    if let Ok(text) = std::fs::read_to_string("/proc/meminfo") {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        return Some(kibibytes * 1024);
    }
    sysctl("hw.memsize")?.parse().ok()
}

/// A value that macOS tells by this command.
fn sysctl(name: &str) -> Option<String> {
    let output = std::process::Command::new("sysctl").args(["-n", name]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
