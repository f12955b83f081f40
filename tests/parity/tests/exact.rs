//! The `mlx` backend against the reference on the same MLX, bit for bit.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]
#![cfg(feature = "mlx")]

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use linnet_compute::KvQuantization;
use linnet_compute::mlx::{MlxBackend, MlxOptions};
use linnet_models::ModelError;
use linnet_parity::{ExactFixture, Mismatch, Scenario, SeededType, replay};
use safetensors::SafeTensors;

/// Whether the fixtures hold here: the committed ones do for MLX's CPU build on x86-64.
const ELSEWHERE: bool = cfg!(not(all(target_os = "linux", target_arch = "x86_64")));

fn fixtures() -> Vec<ExactFixture> {
    assert!(
        !ELSEWHERE || std::env::var_os("LINNET_EXACT_FIXTURES").is_some(),
        "make fixtures on this machine with tests/parity/exact/make.py and name their folder in LINNET_EXACT_FIXTURES"
    );
    ExactFixture::all().unwrap()
}

/// Tests run one at a time: memory limits and the compilation cache are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(fixture: &ExactFixture, folder: &Path, scenario: &Scenario) -> Result<Option<Mismatch>, ModelError> {
    let kv_quantization =
        scenario.kv.map(|kv| KvQuantization { bits: kv.bits, group_size: kv.group_size, start: kv.start });
    let backend = MlxBackend::new(MlxOptions { kv_quantization, always_padded: scenario.is_batch(), composed: true })?;
    let model = linnet_models::load(&backend, folder)?;
    replay(&backend, &*model, fixture, scenario)
}

#[test]
#[cfg_attr(
    not(all(target_os = "linux", target_arch = "x86_64")),
    ignore = "the committed fixtures are MLX's CPU build's on x86-64"
)]
fn every_logit_of_every_call_has_the_reference_bits() {
    let _alone = alone();
    let mut faults = Vec::new();
    for fixture in fixtures() {
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap();
        for scenario in &fixture.scenarios {
            let name = format!("{} {}", fixture.name(), scenario.name);
            match run(&fixture, scratch.path(), scenario) {
                Ok(None) => println!("{name}: {} calls equal", scenario.calls.len()),
                Ok(Some(mismatch)) => faults.push(format!("{name}: {mismatch:?}")),
                Err(error) => faults.push(format!("{name}: {error}")),
            }
        }
    }
    assert!(faults.is_empty(), "{} scenarios differ from the reference:\n{}", faults.len(), faults.join("\n"));
}

/// In each model another weight is made greater by its last bit.
#[test]
#[cfg_attr(
    not(all(target_os = "linux", target_arch = "x86_64")),
    ignore = "the committed fixtures are MLX's CPU build's on x86-64"
)]
fn one_unit_in_the_last_place_of_one_weight_is_seen() {
    let _alone = alone();
    for (number, fixture) in fixtures().iter().enumerate() {
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap();
        // The embedding has rows for tokens that never come.
        let floats = |tensor: &&linnet_parity::SeededTensor| {
            tensor.dtype != SeededType::U32 && !tensor.name.contains("embed_tokens")
        };
        let candidates: Vec<_> = fixture.model.tensors.iter().filter(floats).collect();
        let name = &candidates[(5 * number) % candidates.len()].name;
        let path = scratch.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let offset = offset_of(&bytes, name);
        bytes[offset] ^= 1;
        fs::write(&path, bytes).unwrap();
        let mismatch = run(fixture, scratch.path(), &fixture.scenarios[0]).unwrap();
        assert!(mismatch.is_some(), "{}: a fault in {name} went unseen", fixture.name());
    }
}

/// Where a tensor's data begins in a safetensors file.
fn offset_of(bytes: &[u8], name: &str) -> usize {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    tensors.tensor(name).unwrap().data().as_ptr().addr() - bytes.as_ptr().addr()
}
