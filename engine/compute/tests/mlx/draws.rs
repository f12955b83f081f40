//! Choosing tokens on the device.

use crate::fixture::{array, bare_store, names, step_of};
use linnet_compute::{
    Backend, Draw,
    mlx::{MlxBackend, MlxOptions, MlxTensor},
};

/// Lines of logits as a tensor.
fn logits(backend: &MlxBackend, values: &[f32], columns: usize) -> MlxTensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let rows = values.len() / columns;
    let stored = crate::fixture::Stored { dtype: linnet_compute::Dtype::F32, shape: vec![rows, columns], bytes };
    let table = stored.matrix(backend, columns);
    let mut kv = bare_store(backend);
    let step = step_of(backend, &mut kv, u32::try_from(rows).unwrap());
    backend.outputs(&backend.embed(&table, &step).unwrap(), &step).unwrap()
}

fn choose(backend: &MlxBackend, values: &[f32], columns: usize, draws: &[Draw]) -> Vec<u32> {
    let tokens = backend.choose(&logits(backend, values, columns), draws).unwrap();
    backend.read_tokens(&tokens).unwrap()
}

#[test]
fn draws_take_the_token_that_the_reference_s_filters_and_an_exact_draw_give() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let cases = names("draw.").into_iter().filter_map(|name| Some(name.strip_suffix(".tokens")?.to_owned()));
    let mut all = 0;
    for case in cases {
        let part = |name: &str| array(&format!("draw.{case}.{name}"));
        let settings = part("settings").floats();
        let draws: Vec<Draw> = part("uniform")
            .floats()
            .iter()
            .map(|&uniform| Draw::Random {
                temperature: settings[0],
                top_p: settings[1],
                top_k: settings[2] as usize,
                min_p: settings[3],
                uniform: f64::from(uniform),
            })
            .collect();
        let found = choose(&backend, &part("logits").floats(), 300, &draws);
        assert_eq!(found, part("tokens").words(), "case {case}: {settings:?}");
        all += 1;
    }
    assert_eq!(all, 6);
}

#[test]
fn lines_drawn_in_different_ways_do_not_disturb_each_other() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let values: Vec<f32> = (0..4 * 50).map(|index| ((index * 37 % 101) as f32) / 9.0).collect();
    let random = |temperature, uniform| Draw::Random { temperature, top_p: 0.0, top_k: 0, min_p: 0.0, uniform };
    let draws = [random(0.7, 0.3), Draw::Greedy, random(0.7, 0.9), random(1.5, 0.9)];
    let together = choose(&backend, &values, 50, &draws);
    for (line, draw) in draws.iter().enumerate() {
        let alone = choose(&backend, &values[line * 50..(line + 1) * 50], 50, &[*draw]);
        assert_eq!(together[line], alone[0], "line {line}");
    }
}

#[test]
fn the_ends_of_the_unit_interval_draw_the_first_and_the_last_possible_token() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let mut line = vec![f32::NEG_INFINITY; 3000];
    line[700] = 0.0;
    line[1900] = 0.0;
    let draw = |uniform| Draw::Random { temperature: 1.0, top_p: 0.0, top_k: 0, min_p: 0.0, uniform };
    assert_eq!(choose(&backend, &line, 3000, &[draw(0.0)]), [700]);
    assert_eq!(choose(&backend, &line, 3000, &[draw(1.0 - f64::EPSILON)]), [1900]);
}

#[test]
fn a_line_that_is_no_distribution_gives_no_token_and_leaves_the_others_alone() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    let random = Draw::Random { temperature: 0.8, top_p: 0.9, top_k: 5, min_p: 0.01, uniform: 0.5 };
    for bad in [f32::NAN, f32::INFINITY] {
        let mut values = vec![0.0; 3 * 20];
        values[7] = 9.0;
        values[20 + 3] = bad;
        values[40 + 11] = 9.0;
        for draw in [Draw::Greedy, random] {
            let found = choose(&backend, &values, 20, &[draw; 3]);
            assert_eq!(found, [7, MlxBackend::NO_TOKEN, 11], "{bad}, {draw:?}");
        }
    }
    let found = choose(&backend, &[f32::NEG_INFINITY; 20], 20, &[Draw::Greedy]);
    assert_eq!(found, [MlxBackend::NO_TOKEN]);
}

// mlx-lm compares log-probabilities in the model's own type, where two different logits may round to the same.
#[test]
fn greedy_ties_are_those_of_rounded_log_probabilities() {
    let backend = MlxBackend::new(MlxOptions::default()).unwrap();
    // In bf16, 1.0 and 1.0078125 are neighbours; less than a total of about 9.2 both become -8.1875.
    let mut line = vec![0.0f32; 10_000];
    line[40] = 1.0;
    line[5000] = 1.007_812_5;
    let bytes = line.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect();
    let stored = crate::fixture::Stored { dtype: linnet_compute::Dtype::BF16, shape: vec![1, 10_000], bytes };
    let table = stored.matrix(&backend, 10_000);
    let mut kv = bare_store(&backend);
    let step = step_of(&backend, &mut kv, 1);
    let logits = backend.outputs(&backend.embed(&table, &step).unwrap(), &step).unwrap();
    let chosen = backend.choose(&logits, &[Draw::Greedy]).unwrap();
    assert_eq!(backend.read_tokens(&chosen).unwrap(), [40]);
}
