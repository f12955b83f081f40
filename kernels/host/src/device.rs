//! Running a launch on this machine.

use std::{
    io::Write,
    process::{Command, ExitStatus, Stdio},
    thread,
};

use linnet_kernels::metal::Launch;

use crate::{
    Argument, HostError, Toolchain,
    generate::generate,
    job::{self, FunctionConstant, Options},
};

/// In which order the threads of a group take their turns. A correct kernel gives the same result in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// First to last, simdgroup by simdgroup.
    Forward,
    /// Last to first.
    Reverse,
    /// A new random order each round, from this seed.
    Shuffled(u64),
}

/// Where a kernel can run.
pub trait Device {
    /// Runs a kernel and gives its outputs.
    ///
    /// # Errors
    /// When it does not compile, or does wrong while it runs.
    fn run(&self, launch: &Launch, inputs: &[Argument]) -> Result<Vec<Argument>, HostError>;
}

/// This machine as a device for Metal kernels.
#[derive(Debug, Clone)]
pub struct HostDevice {
    toolchain: Toolchain,
    schedule: Schedule,
    flush_denormals: bool,
}

impl HostDevice {
    /// A device that runs threads in order and keeps subnormal floats.
    ///
    /// # Errors
    /// When clang is missing.
    pub fn new() -> Result<HostDevice, HostError> {
        Ok(HostDevice { toolchain: Toolchain::find()?, schedule: Schedule::Forward, flush_denormals: false })
    }

    /// The same with threads in another order.
    #[must_use]
    pub fn with_schedule(self, schedule: Schedule) -> HostDevice {
        HostDevice { schedule, ..self }
    }

    /// The same with subnormal floats read and written as zero, as Apple's GPUs do.
    #[must_use]
    pub fn with_flushed_denormals(self) -> HostDevice {
        HostDevice { flush_denormals: true, ..self }
    }

    /// The compiler behind the device.
    #[must_use]
    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }

    /// [`Device::run`] with values for function constants. (MLX's custom kernels have none.)
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn run_with_constants(
        &self,
        launch: &Launch,
        inputs: &[Argument],
        constants: &[FunctionConstant],
    ) -> Result<Vec<Argument>, HostError> {
        let program = self.toolchain.program(launch, inputs)?;
        let buffers = generate(launch, inputs, str::to_owned)?.buffers;
        let options = Options { schedule: self.schedule, flush_denormals: self.flush_denormals, constants };
        let job = job::encode(launch, &buffers, options);

        let profile = format!("{}.%1m.profraw", program.file_name().unwrap_or_default().to_string_lossy());
        let mut child = Command::new(&program)
            .env("LLVM_PROFILE_FILE", self.toolchain.folder().join("profiles").join(profile))
            .env("ASAN_SYMBOLIZER_PATH", self.toolchain.companion("llvm-symbolizer"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(HostError::io(&program))?;
        let input = child.stdin.take();
        // A program that ends early leaves the pipe broken; its own message says why.
        let writer = thread::spawn(move || input.map(|mut input| input.write_all(&job)));
        let output = child.wait_with_output().map_err(HostError::io(&program))?;
        let _ = writer.join();
        if !output.status.success() {
            return Err(fault(launch.kernel.name, output.status, &String::from_utf8_lossy(&output.stderr)));
        }
        job::decode(launch, &output.stdout).ok_or_else(|| HostError::Fault {
            kernel: launch.kernel.name,
            kind: "ended".to_owned(),
            message: format!("{} bytes of output", output.stdout.len()),
        })
    }
}

impl Device for HostDevice {
    fn run(&self, launch: &Launch, inputs: &[Argument]) -> Result<Vec<Argument>, HostError> {
        self.run_with_constants(launch, inputs, &[])
    }
}

/// Reads the runner's or a sanitizer's last words.
fn fault(kernel: &'static str, status: ExitStatus, errors: &str) -> HostError {
    let named = errors.lines().find_map(|line| line.strip_prefix("linnet-host: ")?.split_once(": "));
    let (kind, message) = if let Some((kind, message)) = named {
        (kind, message.to_owned())
    } else if let Some(line) = errors.lines().find(|line| line.contains("ERROR: AddressSanitizer")) {
        let frames = errors.lines().map(str::trim).filter(|line| line.contains(".metal:")).take(2);
        ("address", [line].into_iter().chain(frames).collect::<Vec<_>>().join(" "))
    } else if let Some(line) = errors.lines().find(|line| line.contains("runtime error:")) {
        ("undefined", line.to_owned())
    } else {
        ("ended", format!("{status}: {errors}"))
    };
    HostError::Fault { kernel, kind: kind.to_owned(), message }
}
