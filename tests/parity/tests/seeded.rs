//! What the exact fixtures rest on: their weights can be made again, and their comparison can fail.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use linnet_compute::cpu::{CpuBackend, CpuOptions};
use linnet_parity::{ExactFixture, SeededError, replay};

#[test]
fn weights_made_here_are_those_the_reference_ran_on() {
    for fixture in ExactFixture::all().unwrap() {
        assert!(fixture.model.weights_sha256.is_some(), "{}: no digest", fixture.name());
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap_or_else(|error| panic!("{}: {error}", fixture.name()));
    }
}

#[test]
fn another_seed_makes_other_weights() {
    let mut fixture = ExactFixture::all().unwrap().remove(0);
    fixture.model.seed += 1;
    let scratch = tempfile::tempdir().unwrap();
    assert!(matches!(fixture.model.write(scratch.path()), Err(SeededError::Digest { .. })));
}

/// `cpu` adds in another order than MLX: close, but not the same bits.
#[test]
fn nearly_the_same_logits_are_a_mismatch_and_the_distance_is_told() {
    let fixtures = ExactFixture::all().unwrap();
    let fixture = fixtures.iter().find(|fixture| fixture.name() == "llama/dense-f32").unwrap();
    let scratch = tempfile::tempdir().unwrap();
    fixture.model.write(scratch.path()).unwrap();
    let backend = CpuBackend::new(CpuOptions { threads: 2, exact: true });
    let model = linnet_models::load(&backend, scratch.path()).unwrap();
    for scenario in fixture.scenarios.iter().filter(|scenario| scenario.kv.is_none()) {
        let mismatch = replay(&backend, &*model, fixture, scenario).unwrap().expect("cpu has MLX's bits");
        let (differing, distance) = mismatch.logits.expect("the first rows are kept whole");
        assert!(differing > 0 && distance < 2e-2, "{}: {mismatch:?}", scenario.name);
        assert_eq!(mismatch.tokens.0, mismatch.tokens.1, "{}: {mismatch:?}", scenario.name);
    }
}
