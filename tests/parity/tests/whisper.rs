//! Whisper against mlx-whisper: `cpu` within a tolerance of its float32 results, `mlx` bit for bit.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use linnet_compute::cpu::CpuBackend;
use linnet_kernels::{Context, Isa};
use linnet_models::WeightPrecision;
use linnet_parity::{WhisperFixture, WhisperResults};

/// The largest difference of a result, relative to the largest number of the reference's.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let apart = found.iter().zip(expected).fold(0.0_f32, |apart, (a, b)| apart.max((a - b).abs()));
    assert!(found.iter().all(|value| value.is_finite()));
    apart / largest
}

/// What is beyond its tolerance.
fn faults(
    name: &str,
    found: &WhisperResults,
    expected: &WhisperResults,
    tolerance: impl Fn(&str) -> f32,
) -> Vec<String> {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    let mut faults = Vec::new();
    for (result, expected) in expected {
        let apart = difference(&found[result], expected);
        println!("{name} {result}: {apart:.1e}");
        if apart > tolerance(result) {
            faults.push(format!("{name} {result}: {apart:.1e}"));
        }
    }
    faults
}

#[test]
fn the_cores_compute_what_the_reference_computes_in_float32() {
    let mut found = Vec::new();
    for fixture in WhisperFixture::all().unwrap() {
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap();
        let expected = fixture.results("f32");
        for isa in Isa::available() {
            for threads in [1, 3] {
                let backend = CpuBackend::with_context(Context::with_isa(isa, threads), true);
                let results = fixture.run(&backend, scratch.path(), WeightPrecision::Stored).unwrap();
                // Keys and values are held in f16, whose steps are 5e-4 of a number; the rest adds in another order.
                let name = format!("{} {isa:?} {threads}", fixture.name);
                found.extend(faults(&name, &results, &expected, |_| 2e-3));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn weights_in_8_bits_change_little() {
    let mut found = Vec::new();
    for fixture in WhisperFixture::all().unwrap().iter().filter(|fixture| fixture.name.starts_with("dense")) {
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap();
        for exact in [true, false] {
            let backend = CpuBackend::with_context(Context::new(2), exact);
            let results = fixture.run(&backend, scratch.path(), WeightPrecision::Int8).unwrap();
            // Weights of random models use all of their 8 bits: each is off by up to 0.4% of the largest of its group.
            let name = format!("{} int8 exact {exact}", fixture.name);
            found.extend(faults(&name, &results, &fixture.results("f32"), |_| 3e-2));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[cfg(feature = "mlx")]
#[test]
#[cfg_attr(
    not(all(target_os = "linux", target_arch = "x86_64")),
    ignore = "the committed fixtures are MLX's CPU build's on x86-64"
)]
fn mlx_computes_the_references_bits() {
    use linnet_compute::mlx::{MlxBackend, MlxOptions};
    let mut found = Vec::new();
    for fixture in WhisperFixture::all().unwrap() {
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap();
        let backend = MlxBackend::new(MlxOptions { composed: true, ..MlxOptions::default() }).unwrap();
        let results = fixture.run(&backend, scratch.path(), WeightPrecision::Stored).unwrap();
        found.extend(faults(&fixture.name, &results, &fixture.results("native"), |_| 0.0));
    }
    assert!(found.is_empty(), "{found:#?}");
}
