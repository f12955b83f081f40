//! How a sequence is cut into steps, and what shares them, must not change what is computed.

// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

use linnet_compute::cpu::{CpuBackend, CpuKv, CpuOptions};
use linnet_compute::{Backend, KvStore, Outputs, Row, Slot};
use linnet_models::LanguageModel;
use linnet_parity::Fixture;

/// Relative to the largest logit. One row and many go through kernels that add in different orders, and a value that
/// lands on the other side of a rounding border (f16 for keys and values, 15 bits for fast activations) differs by a step.
const EXACT_TOLERANCE: f32 = 1e-4;
const FAST_TOLERANCE: f32 = 1e-3;

struct Run {
    backend: CpuBackend,
    model: Box<dyn LanguageModel<CpuBackend>>,
    kv: CpuKv,
}

impl Run {
    fn new(fixture: &Fixture, exact: bool) -> Self {
        let backend = CpuBackend::new(CpuOptions { threads: 2, exact });
        let model = linnet_models::load(&backend, &fixture.folder).unwrap();
        let kv = backend.kv(model.kv_layout(), 1024).unwrap();
        Self { backend, model, kv }
    }

    /// One step; the logits after each sequence's last token.
    fn step(&mut self, parts: &[(Slot, &[u32])]) -> Vec<Vec<f32>> {
        let tokens: Vec<u32> = parts.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        let rows: Vec<Row> = parts
            .iter()
            .map(|&(slot, tokens)| Row {
                slot,
                start: self.kv.length(slot).unwrap(),
                length: tokens.len(),
                outputs: Outputs::Last,
            })
            .collect();
        let step = self.backend.step(&mut self.kv, &rows, &self.backend.tokens(&tokens).unwrap()).unwrap();
        let output = self.model.forward(&self.backend, &step, &mut self.kv).unwrap();
        let mut logits = Vec::new();
        self.backend.read(&output, &mut logits).unwrap();
        logits.chunks_exact(self.model.vocabulary_size()).map(<[f32]>::to_vec).collect()
    }
}

fn fixtures() -> Vec<Fixture> {
    let names = ["affine-4bit-g64", "affine-mixed", "dense-bf16", "multi-query", "rope-llama3", "sliding-window"];
    let chosen: Vec<_> = Fixture::family("llama")
        .unwrap()
        .into_iter()
        .filter(|fixture| names.contains(&fixture.name().as_str()))
        .collect();
    assert_eq!(chosen.len(), names.len());
    chosen
}

#[track_caller]
fn assert_close(fixture: &Fixture, exact: bool, found: &[f32], expected: &[f32]) {
    let tolerance = if exact { EXACT_TOLERANCE } else { FAST_TOLERANCE };
    match largest_difference(found, expected) {
        Some(difference) if difference <= tolerance => {}
        found => panic!("{}, exact {exact}: {found:?} apart", fixture.name()),
    }
}

/// How far two rows of logits are apart, relative to the largest; `None` where they cannot be compared: of no or of
/// another length, not all of them numbers, or nothing but zeros. (The greater of 0 and NaN is 0.)
fn largest_difference(found: &[f32], expected: &[f32]) -> Option<f32> {
    let is_sound = |logits: &[f32]| !logits.is_empty() && logits.iter().all(|logit| logit.is_finite());
    let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let are_comparable = found.len() == expected.len() && is_sound(found) && is_sound(expected) && largest > 0.0;
    let difference = found.iter().zip(expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    are_comparable.then(|| difference / largest)
}

#[test]
fn logits_that_are_missing_or_no_numbers_do_not_pass_for_equal() {
    let nan = [f32::NAN; 3];
    let good = [1.0, -4.0, 2.0];
    assert_eq!(largest_difference(&[1.0, -4.0, 1.0], &good), Some(0.25));
    let infinite = [1.0, f32::INFINITY, 2.0];
    for (found, expected) in [
        (&nan[..], &nan[..]),
        (&nan, &good),
        (&good, &nan),
        (&[], &[]),
        (&[], &good),
        (&good[..2], &good),
        (&good, &good[..2]),
        (&infinite, &infinite),
        (&[0.0; 3], &[0.0; 3]),
    ] {
        assert_eq!(largest_difference(found, expected), None, "{found:?} {expected:?}");
    }
}

#[test]
fn a_prompt_in_one_step_equals_the_same_token_by_token() {
    for fixture in fixtures() {
        for exact in [true, false] {
            let mut run = Run::new(&fixture, exact);
            let whole = run.kv.open();
            let expected = run.step(&[(whole, &fixture.prompt)]).remove(0);
            let single = run.kv.open();
            let mut found = Vec::new();
            for &token in &fixture.prompt {
                found = run.step(&[(single, &[token])]).remove(0);
            }
            assert_close(&fixture, exact, &found, &expected);
        }
    }
}

#[test]
fn sequences_that_share_steps_equal_each_alone() {
    for fixture in fixtures() {
        for exact in [true, false] {
            let mut run = Run::new(&fixture, exact);
            let prompts: Vec<Vec<u32>> = (0..3)
                .map(|shift| fixture.prompt.iter().cycle().skip(shift * 5).take(20 + 7 * shift).copied().collect())
                .collect();
            let slots: Vec<Slot> = prompts.iter().map(|_| run.kv.open()).collect();
            // A prefill beside decodes: each step one sequence takes a chunk, the others one token or none.
            let mut fed = [0usize; 3];
            let mut found = vec![Vec::new(); 3];
            for turn in 0.. {
                let parts: Vec<(usize, Slot, &[u32])> = (0..3)
                    .filter(|&sequence| fed[sequence] < prompts[sequence].len())
                    .map(|sequence| {
                        let rest = &prompts[sequence][fed[sequence]..];
                        let length = if turn % 3 == sequence { 9.min(rest.len()) } else { 1 };
                        (sequence, slots[sequence], &rest[..length])
                    })
                    .collect();
                if parts.is_empty() {
                    break;
                }
                let together: Vec<(Slot, &[u32])> = parts.iter().map(|&(_, slot, tokens)| (slot, tokens)).collect();
                for (logits, (sequence, _, tokens)) in run.step(&together).into_iter().zip(&parts) {
                    found[*sequence] = logits;
                    fed[*sequence] += tokens.len();
                }
            }
            for (prompt, found) in prompts.iter().zip(&found) {
                let alone = run.kv.open();
                let expected = run.step(&[(alone, prompt)]).remove(0);
                assert_close(&fixture, exact, found, &expected);
            }
        }
    }
}

#[test]
fn tokens_taken_back_leave_no_trace() {
    for fixture in fixtures() {
        let mut run = Run::new(&fixture, true);
        let slot = run.kv.open();
        run.step(&[(slot, &fixture.prompt[..20])]);
        run.step(&[(slot, &fixture.tokens[..10])]);
        run.kv.truncate(slot, 20).unwrap();
        let found = run.step(&[(slot, &fixture.prompt[20..])]).remove(0);
        let clean = run.kv.open();
        run.step(&[(clean, &fixture.prompt[..20])]);
        let expected = run.step(&[(clean, &fixture.prompt[20..])]).remove(0);
        assert!(largest_difference(&found, &expected).is_some(), "{}: no logits", fixture.name());
        assert_eq!(found, expected, "{}", fixture.name());
    }
}
