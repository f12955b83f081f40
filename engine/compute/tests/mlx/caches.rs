//! Caches and masks: the calls that mlx-lm's generators made, repeated.

use crate::{
    fixture::{array, assert_same_bits, names},
    table_model::{TableModel, VOCABULARY},
};
use linnet_compute::{
    Backend, Dtype, KvStore, Outputs, Slot,
    mlx::{MlxOptions, MlxTokens},
};
use serde_json::Value;
use std::collections::HashMap;

/// A model whose calls were recorded.
struct Case {
    name: String,
    description: Value,
    /// Every eighth logit of each row of the calls that chose.
    logits: Vec<f32>,
    chosen: Vec<u32>,
}

struct Call {
    /// Sequences and how many tokens of each.
    rows: Vec<(usize, usize)>,
    chooses: bool,
}

impl Case {
    fn all() -> Vec<Self> {
        let cases = names("cache.").into_iter().filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()));
        cases.map(|name| Self::open(&name)).collect()
    }

    fn open(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            description: serde_json::from_slice(&array(&format!("cache.{name}.json")).bytes).unwrap(),
            logits: array(&format!("cache.{name}.logits")).floats(),
            chosen: array(&format!("cache.{name}.chosen")).words(),
        }
    }

    fn model(&self, options: MlxOptions) -> TableModel {
        let windows: Vec<Option<usize>> = self.description["windows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|window| window.as_u64().map(|n| n as usize))
            .collect();
        let dtype = match self.description["type"].as_str().unwrap() {
            "f32" => Dtype::F32,
            "f16" => Dtype::F16,
            _ => Dtype::BF16,
        };
        let options = match self.description["kv"].as_array() {
            None => options,
            Some(kv) => TableModel::quantized(kv[0].as_u64().unwrap() as u32, kv[1].as_u64().unwrap() as usize),
        };
        TableModel::new(&windows, dtype, options)
    }

    fn prompts(&self) -> Vec<Vec<u32>> {
        serde_json::from_value(self.description["prompts"].clone()).unwrap()
    }

    fn calls(&self) -> Vec<Call> {
        let calls = self.description["calls"].as_array().unwrap().iter();
        calls
            .map(|call| Call {
                rows: serde_json::from_value(call["rows"].clone()).unwrap(),
                chooses: call["chooses"].as_bool().unwrap(),
            })
            .collect()
    }

    /// Repeats the calls. Each call takes the tokens that the one before chose from the device where it can, and its
    /// results are read one call late, as a pipelined decode loop does.
    fn replay(&self, model: &mut TableModel) {
        let (prompts, calls) = (self.prompts(), self.calls());
        let mut sequences = prompts;
        let mut slots: HashMap<usize, Slot> = HashMap::new();
        let mut pending: Option<(Vec<usize>, linnet_compute::mlx::MlxTensor, MlxTokens)> = None;
        let (mut logits, mut chosen) = (Vec::new(), Vec::new());
        let mut read =
            |model: &TableModel, pending: Option<(Vec<usize>, linnet_compute::mlx::MlxTensor, MlxTokens)>| {
                if let Some((_, tensor, tokens)) = pending {
                    let mut values = Vec::new();
                    model.backend.read(&tensor, &mut values).unwrap();
                    logits.extend(values.chunks_exact(VOCABULARY).flat_map(|line| line.iter().step_by(8).copied()));
                    chosen.extend(model.backend.read_tokens(&tokens).unwrap());
                }
            };
        let mut told = 0;
        for (number, call) in calls.iter().enumerate() {
            // What no later call names has ended.
            let ended: Vec<usize> = slots
                .keys()
                .copied()
                .filter(|sequence| !calls[number..].iter().any(|call| call.rows.iter().any(|row| row.0 == *sequence)))
                .collect();
            for sequence in ended {
                model.kv.close(slots.remove(&sequence).unwrap());
            }
            let outputs = if call.chooses { Outputs::Last } else { Outputs::None };
            let members: Vec<usize> = call.rows.iter().map(|row| row.0).collect();
            let mut parts = Vec::new();
            for &(sequence, length) in &call.rows {
                let slot = *slots.entry(sequence).or_insert_with(|| model.kv.open());
                let start = model.kv.length(slot).unwrap();
                parts.push((slot, &sequences[sequence][start..start + length], outputs));
            }
            let repeated =
                pending.as_ref().filter(|(last, ..)| *last == members && call.rows.iter().all(|row| row.1 == 1));
            let tokens = repeated.map(|(_, _, tokens)| tokens.clone());
            let (tensor, tokens) = model.step(&parts, tokens.as_ref()).unwrap();
            let next = call.chooses.then_some((members.clone(), tensor, tokens));
            read(model, std::mem::replace(&mut pending, next));
            if call.chooses {
                for sequence in members {
                    sequences[sequence].push(self.chosen[told]);
                    told += 1;
                }
            }
        }
        read(model, pending);
        assert_eq!(chosen, self.chosen, "{}: chosen tokens", self.name);
        assert_same_bits(&self.name, &logits, &self.logits);
    }
}

#[test]
fn every_recorded_call_gives_the_reference_s_bits() {
    let cases = Case::all();
    assert_eq!(cases.len(), 11);
    for case in cases {
        case.replay(&mut case.model(MlxOptions::default()));
    }
}

// On the cores a row alone has the same bits in a batch of one, so its fixtures test that form, too.
#[test]
fn a_sequence_alone_gives_the_same_bits_as_a_batch_of_one() {
    for case in Case::all().iter().filter(|case| case.description["kv"].is_null()) {
        case.replay(&mut case.model(MlxOptions { always_padded: true, ..MlxOptions::default() }));
    }
}

// Several sequences in one step are several calls of the reference.
#[test]
fn prompts_and_answers_share_a_step_without_changing_each_other() {
    for windows in [&[None][..], &[None, Some(8)]] {
        let mut together = TableModel::new(windows, Dtype::BF16, MlxOptions::default());
        let mut apart = TableModel::new(windows, Dtype::BF16, MlxOptions::default());
        let prompt = |seed: u32, length: u32| (0..length).map(|i| (i * 7 + seed) % 64).collect::<Vec<u32>>();
        let prompts = [prompt(1, 9), prompt(5, 20), prompt(11, 13), prompt(2, 6)];
        let slots: Vec<_> = prompts.iter().map(|_| (together.kv.open(), apart.kv.open())).collect();
        // The second begins to answer while the others still read their prompts.
        let steps: Vec<Vec<(usize, std::ops::Range<usize>)>> = vec![
            vec![(1, 0..19)],
            vec![(1, 19..20), (0, 0..8), (2, 0..12)],
            vec![(2, 12..13), (0, 8..9), (3, 0..5)],
            vec![(3, 5..6)],
        ];
        for step in steps {
            let part = |slot: Slot, (sequence, range): &(usize, std::ops::Range<usize>)| {
                let outputs = if range.end == prompts[*sequence].len() { Outputs::Last } else { Outputs::None };
                (slot, &prompts[*sequence][range.clone()], outputs)
            };
            let read = |model: &TableModel, tensor: &linnet_compute::mlx::MlxTensor| {
                let mut values = Vec::new();
                model.backend.read(tensor, &mut values).unwrap();
                values
            };
            let parts: Vec<_> = step.iter().map(|row| part(slots[row.0].0, row)).collect();
            let (tensor, _) = together.step(&parts, None).unwrap();
            let found = read(&together, &tensor);
            let mut expected = Vec::new();
            for row in &step {
                let (tensor, _) = apart.step(&[part(slots[row.0].1, row)], None).unwrap();
                expected.extend(read(&apart, &tensor));
            }
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 0.02, "{found} for {expected}");
            }
        }
    }
}
