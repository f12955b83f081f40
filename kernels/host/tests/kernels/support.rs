//! What all tests of kernels share.

use linnet_kernels::metal::{AffineRows, Element, round_to};
#[cfg(all(feature = "gpu", target_os = "macos"))]
use linnet_metal_host::GpuDevice;
use linnet_metal_host::{Argument, Device};
#[cfg(target_os = "linux")]
use linnet_metal_host::{HostDevice, Schedule};
use rand::{Rng, rngs::StdRng};

/// Where kernels run here: on this machine's processor, with threads in two orders and subnormal floats kept and
/// flushed; on an Apple GPU. Never nowhere: a test that ran no kernel would pass.
fn devices() -> Vec<Box<dyn Device>> {
    let devices: Vec<Box<dyn Device>> = vec![
        #[cfg(target_os = "linux")]
        Box::new(HostDevice::new().unwrap()),
        #[cfg(target_os = "linux")]
        Box::new(HostDevice::new().unwrap().with_schedule(Schedule::Shuffled(7)).with_flushed_denormals()),
        #[cfg(all(feature = "gpu", target_os = "macos"))]
        Box::new(GpuDevice),
    ];
    assert!(!devices.is_empty(), "no device is compiled in; on a Mac run the tests with `--features gpu`");
    devices
}

/// Runs a test wherever kernels run here.
pub(crate) fn each_device(mut test: impl FnMut(&dyn Device)) {
    devices().iter().for_each(|device| test(&**device));
}

/// Runs a test once: on the processor, or on a Mac on its GPU.
pub(crate) fn one_device(test: impl FnOnce(&dyn Device)) {
    test(&*devices()[0]);
}

/// Half the distance between neighbouring numbers of a type, relative to their size: what one rounding costs.
pub(crate) fn rounding(element: Element) -> f32 {
    match element {
        Element::F16 => 1.0 / 2048.0,
        Element::Bf16 => 1.0 / 256.0,
        _ => 1.0 / 16_777_216.0,
    }
}

/// Random numbers that the type holds exactly.
pub(crate) fn floats(random: &mut StdRng, element: Element, count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|_| round_to(element, random.random_range(-size..size))).collect()
}

/// Quantized rows, as arrays for a kernel and as values for its reference.
#[derive(Debug, Clone)]
pub(crate) struct Affine {
    pub(crate) codes: Vec<u32>,
    pub(crate) scales: Vec<f32>,
    pub(crate) biases: Vec<f32>,
    pub(crate) columns: usize,
    pub(crate) bits: usize,
    pub(crate) group: usize,
}

impl Affine {
    /// Random codes; scales and biases such that values lie within `size` or so.
    pub(crate) fn random(
        random: &mut StdRng,
        element: Element,
        [rows, columns]: [usize; 2],
        bits: usize,
        group: usize,
        size: f32,
    ) -> Affine {
        let groups = rows * columns / group;
        let step = 2.0 * size / (1 << bits) as f32;
        Affine {
            codes: (0..rows * columns * bits / 32).map(|_| random.random()).collect(),
            scales: (0..groups).map(|_| round_to(element, step * random.random_range(0.3..1.0))).collect(),
            biases: (0..groups).map(|_| round_to(element, -size * random.random_range(0.3..1.0))).collect(),
            columns,
            bits,
            group,
        }
    }

    pub(crate) fn rows(&self) -> AffineRows<'_> {
        let Affine { codes, scales, biases, columns, bits, group } = self;
        AffineRows { codes, scales, biases, columns: *columns, bits: *bits, group: *group }
    }

    /// Codes, scales and biases; `leading` are the dimensions before the columns.
    pub(crate) fn arguments(&self, element: Element, leading: &[usize]) -> [Argument; 3] {
        let shape = |last: usize| [leading, &[last]].concat();
        let (words, groups) = (self.columns * self.bits / 32, self.columns / self.group);
        [
            Argument::u32(&shape(words), &self.codes),
            Argument::floats(element, &shape(groups), &self.scales),
            Argument::floats(element, &shape(groups), &self.biases),
        ]
    }
}
