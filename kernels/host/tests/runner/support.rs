//! Small kernels from text.

use linnet_kernels::metal::{Element, KernelSource, Launch, Output, SourceFile, TemplateValue};
use linnet_metal_host::{Argument, Device, HostDevice, HostError, Schedule};

/// A kernel under test. Sources are `'static` in the product; here each test leaks a few bytes.
pub(crate) struct Kernel {
    pub(crate) source: &'static KernelSource,
    pub(crate) template: Vec<(&'static str, TemplateValue)>,
}

impl Kernel {
    /// A kernel with input `x` and output `y`. Its file is named after the kernel.
    pub(crate) fn new(name: &'static str, functions: &'static str, body: &'static str) -> Kernel {
        let file = |suffix: &str, text| SourceFile { name: format!("runner/{name}{suffix}.metal").leak(), text };
        let source = KernelSource {
            name,
            inputs: &["x"],
            outputs: &["y"],
            functions: vec![file("_functions", functions)].leak(),
            body: file("", body),
        };
        Kernel { source: Box::leak(Box::new(source)), template: Vec::new() }
    }

    pub(crate) fn launch(&self, grid: [u32; 3], threadgroup: [u32; 3], element: Element, length: usize) -> Launch {
        Launch {
            kernel: self.source,
            template: self.template.clone(),
            outputs: vec![Output { shape: vec![length], element }],
            grid,
            threadgroup,
        }
    }

    /// Runs `threads` threads in groups of `group`, which write `length` floats.
    pub(crate) fn run(&self, threads: u32, group: u32, x: &[f32], length: usize) -> Result<Vec<f32>, HostError> {
        self.run_in(Schedule::Forward, threads, group, x, length)
    }

    pub(crate) fn run_in(
        &self,
        schedule: Schedule,
        threads: u32,
        group: u32,
        x: &[f32],
        length: usize,
    ) -> Result<Vec<f32>, HostError> {
        let launch = self.launch([threads, 1, 1], [group, 1, 1], Element::F32, length);
        let x = Argument::floats(Element::F32, &[x.len()], x);
        let outputs = HostDevice::new()?.with_schedule(schedule).run(&launch, &[x])?;
        Ok(outputs[0].to_f32())
    }

    /// Runs like [`Kernel::run`] in every schedule, expects a fault of `kind` in each, and gives the message of one.
    pub(crate) fn fault(&self, kind: &str, threads: u32, group: u32) -> String {
        let x = [0.5; 64];
        let mut message = String::new();
        for schedule in [Schedule::Reverse, Schedule::Shuffled(3), Schedule::Forward] {
            let error = self.run_in(schedule, threads, group, &x, 64).expect_err("the fault is found");
            assert_eq!(error.fault_kind(), Some(kind), "{schedule:?}: {error}");
            message = error.to_string();
        }
        message
    }
}
