//! The `cpu` backend against the reference, on every fixture.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use linnet_compute::cpu::{CpuBackend, CpuOptions};
use linnet_compute::{Backend, KvStore, Outputs, Row};
use linnet_models::ModelError;
use linnet_parity::{Comparison, Fixture, compare};
use safetensors::SafeTensors;

/// The exact path computes in f32, but keys and values are kept in f16: rounding errors of 2⁻¹¹ that mostly cancel.
const EXACT_TOLERANCE: f32 = 1e-3;

/// Against the reference that keeps keys and values in f16 too, what is left is the order of additions, and the values
/// that it carries over a rounding border of f16.
const EXACT_ROUNDED_KV_TOLERANCE: f32 = 1e-4;

/// The fast path holds activations to about 15 bits per group, which adds less than keys and values in f16 do.
const FAST_TOLERANCE: f32 = 2e-3;

/// The share of decode steps at which the fast path must pick the reference's token. The fixtures promise a margin of
/// 0.4% only, and random logits lie close together, so some steps may turn.
const FAST_AGREEMENT: f32 = 0.98;

const THREADS: usize = 2;

/// Compares the model in `folder` with `fixture`.
fn run(fixture: &Fixture, folder: &Path, exact: bool) -> Result<Comparison, ModelError> {
    let backend = CpuBackend::new(CpuOptions { threads: THREADS, exact });
    let model = linnet_models::load(&backend, folder)?;
    let mut kv = backend.kv(model.kv_layout(), fixture.prompt.len() + fixture.tokens.len())?;
    let slot = kv.open();
    compare(fixture, |tokens| {
        let row = Row { slot, start: kv.length(slot)?, length: tokens.len(), outputs: Outputs::Last };
        let step = backend.step(&mut kv, &[row], &backend.tokens(tokens)?)?;
        let output = model.forward(&backend, &step, &mut kv)?;
        let mut logits = Vec::new();
        backend.read(&output, &mut logits)?;
        Ok(logits)
    })
}

fn llama_fixtures() -> Vec<Fixture> {
    let fixtures = Fixture::family("llama").unwrap();
    assert!(fixtures.len() >= 30, "only {} fixtures were found", fixtures.len());
    fixtures
}

/// Compares every fixture and fails with all that did not pass, not with the first alone.
fn check_all(exact: bool, passes: impl Fn(&Comparison) -> bool) {
    let mut faults = Vec::new();
    for fixture in llama_fixtures() {
        match run(&fixture, &fixture.folder, exact) {
            Err(error) => faults.push(format!("{}: {error}", fixture.name())),
            Ok(result) if !passes(&result) => faults.push(format!("{}: {result:?}", fixture.name())),
            Ok(result) => println!("{}: {result:?}", fixture.name()),
        }
    }
    assert!(faults.is_empty(), "{} fixtures differ from the reference:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn exact_path_gives_the_reference_logits_and_tokens() {
    check_all(true, passes_exact);
}

#[test]
fn fast_path_stays_within_its_tolerance() {
    check_all(false, |result| {
        result.error <= FAST_TOLERANCE && result.agreed as f32 >= FAST_AGREEMENT * result.steps as f32
    });
}

#[test]
fn one_changed_weight_fails_the_comparison() {
    let scratch = tempfile::tempdir().unwrap();
    for fixture in llama_fixtures() {
        let folder = scratch.path().join(fixture.name());
        fs::create_dir(&folder).unwrap();
        fs::copy(fixture.folder.join("config.json"), folder.join("config.json")).unwrap();
        let mut bytes = fs::read(fixture.folder.join("model.safetensors")).unwrap();
        let offset = offset_of(&bytes, "model.layers.0.mlp.down_proj.weight");
        // The highest bit of the first word: the sign of a float, or half the range of a packed code.
        bytes[offset + 3] ^= 0x80;
        fs::write(folder.join("model.safetensors"), bytes).unwrap();
        let result = run(&fixture, &folder, true).unwrap();
        assert!(!passes_exact(&result), "{}: a changed weight went unseen: {result:?}", fixture.name());
    }
}

fn passes_exact(result: &Comparison) -> bool {
    result.error <= EXACT_TOLERANCE
        && result.rounded_kv_error <= EXACT_ROUNDED_KV_TOLERANCE
        && result.agreed == result.steps
}

/// Where a tensor's data begins in a safetensors file.
fn offset_of(bytes: &[u8], name: &str) -> usize {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    tensors.tensor(name).unwrap().data().as_ptr().addr() - bytes.as_ptr().addr()
}
