//! Greedy selection on the host runner.

use crate::support::{each_device, one_device};
use linnet_kernels::metal::{Element, GREEDY_NONE, GreedyPlan, greedy_reference, log_sum_exp, round_to};
use linnet_metal_host::{Argument, Device, HostError};
use rand::{Rng, SeedableRng, rngs::StdRng};

fn select(device: &dyn Device, element: Element, rows: usize, logits: &[f32]) -> Result<Vec<u32>, HostError> {
    select_argument(device, &Argument::floats(element, &[rows, logits.len() / rows], logits))
}

fn select_argument(device: &dyn Device, logits: &Argument) -> Result<Vec<u32>, HostError> {
    let tokens = match GreedyPlan::new(logits.shape[0], logits.shape[1], logits.element).unwrap() {
        GreedyPlan::Single(launch) => device.run(&launch, std::slice::from_ref(logits))?,
        GreedyPlan::TwoPass { tiles, finish } => {
            let mut inputs = vec![logits.clone()];
            inputs.extend(device.run(&tiles, std::slice::from_ref(logits))?);
            device.run(&finish, &inputs)?
        }
    };
    Ok(tokens[0].to_u32())
}

/// Checks each row against the reference, for every `log_sum` that summing in another order may round to.
fn assert_selects(device: &dyn Device, element: Element, rows: usize, logits: &[f32]) {
    let vocabulary = logits.len() / rows;
    let rounded: Vec<f32> = logits.iter().map(|&x| round_to(element, x)).collect();
    let got = select(device, element, rows, logits).unwrap();
    for (row, line) in rounded.chunks(vocabulary).enumerate() {
        let log_sum = log_sum_exp(line);
        let error = log_sum.abs().max(1.0) * 1e-6;
        let accepted = [log_sum - error, log_sum, log_sum + error]
            .map(|value| greedy_reference(line, round_to(element, value as f32), element));
        assert!(
            accepted.contains(&got[row]),
            "{element:?} {rows}x{vocabulary}, row {row}: {} not in {accepted:?}",
            got[row]
        );
    }
}

const FLOATS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

#[test]
fn random_logits_of_every_type_and_length() {
    let mut random = StdRng::seed_from_u64(1);
    each_device(|device| {
        for element in FLOATS {
            for (rows, vocabulary) in
                [(1, 1), (1, 7), (1, 8), (3, 255), (2, 256), (1, 257), (1, 4096), (2, 4097), (1, 10_001)]
            {
                let logits: Vec<f32> = (0..rows * vocabulary).map(|_| random.random_range(-12.0..12.0)).collect();
                assert_selects(device, element, rows, &logits);
            }
        }
    });
}

#[test]
fn ties_after_rounding_go_to_the_lowest_index() {
    let mut random = StdRng::seed_from_u64(2);
    let mut ties = 0;
    each_device(|device| {
        for element in [Element::F16, Element::Bf16] {
            // Scores lie between -9 and -8, where numbers are twice as far apart as between 4 and 4.25.
            let logits: Vec<f32> = (0..4 * 5000).map(|_| 4.0 + random.random_range(0.0..0.25)).collect();
            assert_selects(device, element, 4, &logits);
            let rounded: Vec<f32> = logits[..5000].iter().map(|&x| round_to(element, x)).collect();
            let log_sum = round_to(element, log_sum_exp(&rounded) as f32);
            let first_greatest = greedy_reference(&rounded, 0.0, element);
            ties += usize::from(greedy_reference(&rounded, log_sum, element) < first_greatest);
        }
    });
    assert!(ties > 0, "the data has scores that tie although their logits do not");
}

#[test]
fn equal_logits_in_one_tile_and_in_several() {
    each_device(|device| {
        for places in [vec![4095, 4094], vec![5000, 2047, 2048], vec![9999], vec![0, 9999], vec![]] {
            let mut logits = vec![-3.0; 10_000];
            places.iter().for_each(|&place: &usize| logits[place] = 5.0);
            let expected = places.iter().min().copied().unwrap_or(0) as u32;
            assert_eq!(select(device, Element::F32, 1, &logits).unwrap(), [expected]);
            assert_eq!(
                select(device, Element::F32, 1, &logits[..4096]).unwrap(),
                [places.iter().filter(|&&place| place < 4096).min().copied().unwrap_or(0) as u32]
            );
        }
    });
}

#[test]
fn infinite_and_subnormal_logits() {
    let infinity = f32::INFINITY;
    each_device(|device| {
        for length in [9, 5000] {
            let row = |places: &[(usize, f32)], rest: f32| {
                let mut logits = vec![rest; length];
                places.iter().for_each(|&(place, value)| logits[place] = value);
                select(device, Element::F32, 1, &logits).unwrap()[0]
            };
            assert_eq!(row(&[(3, -1e30)], -infinity), 3);
            assert_eq!(row(&[(length - 1, 4.0)], -infinity), length as u32 - 1);
            assert_eq!(row(&[(4, 3e38), (6, -3e38)], -infinity), 4);
            // All scores are equal to the greatest one once log_sum is taken off.
            assert_eq!(row(&[(2, 1e-40)], 0.0), 0);
            for (value, rest) in [(f32::NAN, 1.0), (f32::NAN, -infinity), (infinity, 1.0), (-infinity, -infinity)] {
                assert_eq!(row(&[(length - 2, value)], rest), GREEDY_NONE, "{value} among {rest}");
            }
        }
    });
}

#[test]
fn rows_that_lie_apart() {
    let mut random = StdRng::seed_from_u64(4);
    for vocabulary in [100, 6000] {
        let whole: Vec<f32> = (0..3 * (vocabulary + 8)).map(|_| random.random_range(-9.0..9.0)).collect();
        let logits = Argument::floats(Element::F32, &[3, vocabulary + 8], &whole).sliced(1, 8..vocabulary + 8);
        let expected: Vec<u32> = whole
            .chunks(vocabulary + 8)
            .map(|line| greedy_reference(&line[8..], log_sum_exp(&line[8..]) as f32, Element::F32))
            .collect();
        one_device(|device| assert_eq!(select_argument(device, &logits).unwrap(), expected));
    }
}
