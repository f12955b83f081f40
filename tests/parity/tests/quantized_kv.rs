//! The `cpu` backend with keys and values in 8 and 4 bits, against what mlx-lm computes with its own.
//!
//! The reference holds what it has not quantized yet in f32, the `cpu` backend in f16, so a value near the middle between
//! two codes can get the other one: the tolerances are those of single steps of a few elements, not of rounding.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::print_stdout, clippy::unwrap_used)]

use linnet_compute::cpu::{CpuBackend, CpuOptions};
use linnet_compute::{Backend, KvQuantization, KvStore, Outputs, Row};
use linnet_parity::{ExactFixture, Scenario};

/// The greatest difference of a logit, over the greatest logit of its row: twice what was found (0.0046 and 0.020).
fn tolerance(bits: u32) -> f32 {
    if bits == 8 { 0.01 } else { 0.04 }
}

/// How far logits of a scenario are off at most, how many rows were compared, and how many tokens of all differ.
fn compare(fixture: &ExactFixture, folder: &std::path::Path, scenario: &Scenario) -> (f32, usize, usize) {
    let quantization =
        scenario.kv.map(|kv| KvQuantization { bits: kv.bits, group_size: kv.group_size, start: kv.start });
    let backend = CpuBackend::new(CpuOptions { threads: 2, exact: true }).with_kv_quantization(quantization);
    let model = linnet_models::load(&backend, folder).unwrap();
    let mut kv = backend.kv(model.kv_layout(), 4096).unwrap();
    let slot = kv.open();
    let mut sequence = scenario.prompts[0].clone();
    let (mut worst, mut rows, mut others) = (0.0f32, 0, 0);
    for (index, call) in scenario.calls.iter().enumerate() {
        let [(0, length)] = call.rows[..] else { unreachable!("one sequence") };
        let start = kv.length(slot).unwrap();
        let outputs = if call.logits.is_empty() { Outputs::None } else { Outputs::Last };
        let tokens = backend.tokens(&sequence[start..start + length]).unwrap();
        let step = backend.step(&mut kv, &[Row { slot, start, length, outputs }], &tokens).unwrap();
        let logits = model.forward(&backend, &step, &mut kv).unwrap();
        backend.submit(&step, &mut kv, None, None).unwrap();
        let Some(&token) = call.tokens.first() else { continue };
        sequence.push(token);
        let mut found = Vec::new();
        backend.read(&logits, &mut found).unwrap();
        others += usize::from(greedy(&found) != token);
        if let Some(expected) = fixture.whole_rows(scenario, index) {
            let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let most = found.iter().zip(expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            worst = worst.max(most / largest);
            rows += 1;
        }
    }
    (worst, rows, others)
}

/// The first of the greatest.
fn greedy(logits: &[f32]) -> u32 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|logit| *logit == greatest).unwrap() as u32
}

#[test]
fn quantized_keys_and_values_stay_near_the_reference() {
    let mut compared = 0;
    for fixture in ExactFixture::all().unwrap().into_iter().filter(|fixture| fixture.name().ends_with("f32")) {
        let scratch = tempfile::tempdir().unwrap();
        fixture.model.write(scratch.path()).unwrap();
        for scenario in fixture.scenarios.iter().filter(|scenario| scenario.prompts.len() == 1) {
            let Some(kv) = scenario.kv else { continue };
            let (worst, rows, others) = compare(&fixture, scratch.path(), scenario);
            let name = format!("{} {}", fixture.name(), scenario.name);
            println!(
                "{name}: {worst:.5} over {rows} rows, {others} of {} calls choose otherwise",
                scenario.calls.len()
            );
            assert!(worst <= tolerance(kv.bits), "{name}: {worst}");
            compared += rows;
        }
    }
    assert!(compared > 0, "no fixture has logits to compare with");
}
