//! What several tests need: the fixtures, and noise.

use std::path::{Path, PathBuf};

use linnet_kernels::FloatSlice;
use safetensors::SafeTensors;

/// The clips of real speech.
pub(crate) const CLIPS: [&str; 6] =
    ["jfk", "librivox-0870", "librivox-0880", "librivox-0890", "librivox-0920", "librivox-0930"];

/// The path of a fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The samples of a clip of real speech.
pub(crate) fn clip(name: &str) -> Vec<f32> {
    crate::AudioReader::open(&fixture(&format!("speech/{name}.flac"))).unwrap().read_to_end().unwrap()
}

/// The numbers of a tensor of a fixture.
pub(crate) fn tensor(file: &[u8], name: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let numbers = FloatSlice::F32(tensors.tensor(name).unwrap().data());
    (0..numbers.len()).map(|index| numbers.get(index)).collect()
}

/// White noise from the generator that `tests/speech/make_fixtures.py` has too.
pub(crate) fn noise(seed: u32, count: usize, level: f32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state >> 8) / f64::from(1 << 23) - 1.0) as f32 * level
    };
    (0..count).map(|_| next()).collect()
}
