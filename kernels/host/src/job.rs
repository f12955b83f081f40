//! A launch as bytes, and the runner's answer. `runtime/main.cpp` reads what this writes.

use linnet_kernels::metal::{Launch, Output};

use crate::{Argument, Schedule, generate::Buffer};

const MAGIC: u32 = 0x314a_484c;

/// A value for a function constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionConstant {
    /// Its index in the source.
    pub index: u32,
    /// Its bytes, native order, zeros behind.
    pub value: [u8; 16],
}

impl FunctionConstant {
    /// A `bool`.
    #[must_use]
    pub fn bool(index: u32, value: bool) -> FunctionConstant {
        FunctionConstant { index, value: u128::from(value).to_le_bytes() }
    }

    /// An `int`.
    #[must_use]
    pub fn int(index: u32, value: i32) -> FunctionConstant {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&value.to_ne_bytes());
        FunctionConstant { index, value: bytes }
    }
}

/// How the runner is to go about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options<'a> {
    pub(crate) schedule: Schedule,
    pub(crate) flush_denormals: bool,
    pub(crate) constants: &'a [FunctionConstant],
}

/// What goes to the runner's standard input.
pub(crate) fn encode(launch: &Launch, inputs: &[Buffer], options: Options<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut word = |value: u32| bytes.extend(value.to_ne_bytes());
    word(MAGIC);
    launch.grid.iter().chain(&launch.threadgroup).for_each(|&size| word(size));
    let (schedule, seed) = match options.schedule {
        Schedule::Forward => (0, 0),
        Schedule::Reverse => (1, 0),
        Schedule::Shuffled(seed) => (2, seed),
    };
    word(schedule);
    word(u32::from(options.flush_denormals));
    bytes.extend(seed.to_ne_bytes());
    bytes.extend(((inputs.len() + launch.outputs.len()) as u32).to_ne_bytes());
    for input in inputs {
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend((input.item_bytes as u32).to_ne_bytes());
        bytes.extend((input.bytes.len() as u64).to_ne_bytes());
        bytes.extend(&input.bytes);
    }
    for output in &launch.outputs {
        bytes.extend(1u32.to_ne_bytes());
        bytes.extend((output.element.bytes() as u32).to_ne_bytes());
        bytes.extend((size(output) as u64).to_ne_bytes());
    }
    bytes.extend((options.constants.len() as u32).to_ne_bytes());
    for constant in options.constants {
        bytes.extend(constant.index.to_ne_bytes());
        bytes.extend(constant.value);
    }
    bytes
}

/// The outputs from the runner's standard output; `None` when it is too short or too long.
pub(crate) fn decode(launch: &Launch, mut bytes: &[u8]) -> Option<Vec<Argument>> {
    let mut outputs = Vec::new();
    for output in &launch.outputs {
        let (own, rest) = bytes.split_at_checked(size(output))?;
        outputs.push(Argument::contiguous(output.element, &output.shape, own.to_vec()));
        bytes = rest;
    }
    bytes.is_empty().then_some(outputs)
}

fn size(output: &Output) -> usize {
    output.shape.iter().product::<usize>() * output.element.bytes()
}
