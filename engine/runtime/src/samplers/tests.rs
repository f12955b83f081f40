//! The whole chain: agreement with mlx-lm, and draws that follow the distribution.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Fixture {
    exempt: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    logits: Vec<f32>,
    history: Vec<u32>,
    temperature: f32,
    #[serde(default)]
    logit_bias: Vec<(u32, f32)>,
    repetition_penalty: Option<f32>,
    repetition_window: Option<usize>,
    presence_penalty: Option<f32>,
    presence_window: Option<usize>,
    frequency_penalty: Option<f32>,
    frequency_window: Option<usize>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    processed: Vec<f32>,
    logprobs: Vec<f32>,
    greedy: u32,
    kept: Vec<u32>,
    probabilities: Vec<f64>,
}

impl Case {
    fn parameters(&self) -> SamplingParameters {
        let default = SamplingParameters::default();
        SamplingParameters {
            temperature: self.temperature,
            top_p: self.top_p.unwrap_or(default.top_p),
            top_k: self.top_k.unwrap_or(default.top_k),
            min_p: self.min_p.unwrap_or(default.min_p),
            xtc_probability: self.xtc_probability.unwrap_or(default.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(default.xtc_threshold),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            repetition_window: self.repetition_window.unwrap_or(default.repetition_window),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            presence_window: self.presence_window.unwrap_or(default.presence_window),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            frequency_window: self.frequency_window.unwrap_or(default.frequency_window),
            logit_bias: self.logit_bias.clone(),
            seed: Some(1),
        }
    }
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../../tests/sampling/sampling.json")).unwrap()
}

// Both sides compute in f32, and the fixture keeps seven digits.
fn agree(ours: f32, theirs: f32) -> bool {
    (ours - theirs).abs() <= 1e-6f32.mul_add(theirs.abs(), 2e-5)
}

#[test]
fn penalties_and_reported_probabilities_agree_with_mlx_lm() {
    let fixture = fixture();
    assert_eq!(fixture.cases.len(), 150);
    for (index, case) in fixture.cases.iter().enumerate() {
        let greedy = SamplingParameters { temperature: 0.0, ..case.parameters() };
        // Fed token by token from a one-token prompt, as a generation does it.
        let mut sampler = Sampler::new(greedy, &case.history[..1], Vec::new());
        for end in 2..=case.history.len() {
            sampler.accept(&case.history[..end]);
        }
        let mut logits = case.logits.clone();
        let chosen = sampler.choose(&mut logits, Some(64), &mut Scratch::default()).unwrap();
        assert_eq!(chosen.token, case.greedy, "case {index}");
        for (token, (ours, theirs)) in logits.iter().zip(&case.processed).enumerate() {
            assert!(agree(*ours, *theirs), "case {index}, logit of {token}: {ours} is not {theirs}");
        }
        let logprob = chosen.logprob.unwrap();
        assert_eq!(logprob.logprob, logprob.top[0].1);
        assert!(logprob.top.is_sorted_by(|before, after| before.1 >= after.1));
        assert_eq!(logprob.top.len(), 64);
        for (token, ours) in logprob.top {
            let theirs = case.logprobs[token as usize];
            assert!(agree(ours, theirs), "case {index}, log-probability of {token}: {ours} is not {theirs}");
        }
    }
}

#[test]
fn filters_and_their_order_agree_with_mlx_lm() {
    let fixture = fixture();
    for (index, case) in fixture.cases.iter().enumerate() {
        let mut sampler = Sampler::new(case.parameters(), &case.history, fixture.exempt.clone());
        let mut logits = case.logits.clone();
        bias::apply(&sampler.parameters.logit_bias, &mut logits);
        sampler.penalties.apply(&mut logits);
        let maximum = maximum::of(&logits).unwrap();
        let mut scratch = Scratch::default();
        let narrowed = sampler.narrow(&logits, maximum, &mut scratch);
        if let Narrowed::Least(least) = narrowed {
            candidate::collect(&logits, maximum, least, &mut scratch.candidates);
        }
        let mut candidates = scratch.candidates;
        candidates.sort_unstable_by_key(|candidate| candidate.token);
        let kept: Vec<u32> = candidates.iter().map(|candidate| candidate.token).collect();
        assert_eq!(kept, case.kept, "case {index}");
        // The draws, spread evenly over the unit interval, hit each token in proportion to its probability.
        const DRAWS: usize = 20_000;
        let mut hits = vec![0usize; logits.len()];
        for draw in 0..DRAWS {
            let number = (draw as f64 + 0.5) / DRAWS as f64;
            hits[temperature::draw(&mut candidates, case.temperature, number) as usize] += 1;
        }
        for (&token, probability) in case.kept.iter().zip(&case.probabilities) {
            let expected = probability * DRAWS as f64;
            assert!((hits[token as usize] as f64 - expected).abs() <= 2.0, "case {index}, token {token}");
        }
    }
}

fn chi_square(parameters: &SamplingParameters, logits: &[f32], expected: &[f64]) {
    const DRAWS: usize = 20_000;
    let mut sampler = Sampler::new(parameters.clone(), &[0], Vec::new());
    let mut scratch = Scratch::default();
    let mut hits = vec![0usize; logits.len()];
    for _ in 0..DRAWS {
        hits[sampler.choose(&mut logits.to_vec(), None, &mut scratch).unwrap().token as usize] += 1;
    }
    let mut statistic = 0.0;
    let mut freedom = -1.0;
    for (token, (&hits, &probability)) in hits.iter().zip(expected).enumerate() {
        if probability == 0.0 {
            assert_eq!(hits, 0, "token {token} was dropped but drawn");
            continue;
        }
        let expected = probability * DRAWS as f64;
        statistic += (hits as f64 - expected).powi(2) / expected;
        freedom += 1.0;
    }
    // Four standard deviations above the mean of the chi-square distribution: one seed in some ten thousand fails.
    assert!(statistic < freedom + 4.0 * f64::sqrt(2.0 * freedom), "{parameters:?}: {statistic} for {freedom}");
}

fn softmax(logits: &[f32], temperature: f64, keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let weights: Vec<f64> = logits
        .iter()
        .enumerate()
        .map(|(token, &logit)| if keep(token) { (f64::from(logit) / temperature).exp() } else { 0.0 })
        .collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

#[test]
fn draws_follow_the_distribution() {
    // Token 11 - i is the i-th most probable.
    let logits: Vec<f32> = (0..12).map(|token| token as f32 * 0.3).collect();
    for seed in [1, 2, 3] {
        for temperature in [0.5, 1.0, 2.0] {
            let parameters = SamplingParameters { temperature, seed: Some(seed), ..Default::default() };
            chi_square(&parameters, &logits, &softmax(&logits, f64::from(temperature), |_| true));
            let top_k = SamplingParameters { top_k: 5, ..parameters.clone() };
            chi_square(&top_k, &logits, &softmax(&logits, f64::from(temperature), |token| token >= 7));
            let min_p = SamplingParameters { min_p: 0.5, ..parameters.clone() };
            chi_square(&min_p, &logits, &softmax(&logits, f64::from(temperature), |token| token >= 9));
        }
        // Half of the steps drop all tokens above the threshold but one.
        let parameters = SamplingParameters {
            temperature: 1.0,
            xtc_probability: 0.5,
            xtc_threshold: 0.2,
            seed: Some(seed),
            ..Default::default()
        };
        let all = softmax(&logits, 1.0, |_| true);
        assert!(all[10] < 0.2 && all[11] > 0.2, "one token is above the threshold, so nothing is dropped: {all:?}");
        chi_square(&parameters, &logits, &all);
        let parameters = SamplingParameters { xtc_threshold: 0.15, ..parameters };
        assert!(all[9] < 0.15 && all[10] > 0.15);
        let without_top = softmax(&logits, 1.0, |token| token != 11);
        let mixed: Vec<f64> = all.iter().zip(&without_top).map(|(all, without)| (all + without) / 2.0).collect();
        chi_square(&parameters, &logits, &mixed);
    }
}

#[test]
fn a_seed_repeats_its_tokens_and_another_gives_others() {
    let logits = vec![0.0; 1000];
    let draw = |seed, top_k| {
        let parameters = SamplingParameters { temperature: 1.0, top_k, seed, ..Default::default() };
        let mut sampler = Sampler::new(parameters, &[0], Vec::new());
        let mut scratch = Scratch::default();
        let tokens = (0..20).map(|_| sampler.choose(&mut logits.clone(), None, &mut scratch).unwrap().token);
        tokens.collect::<Vec<u32>>()
    };
    assert_eq!(draw(Some(5), 0), draw(Some(5), 0));
    assert_ne!(draw(Some(5), 0), draw(Some(6), 0));
    assert_ne!(draw(None, 0), draw(None, 0));
    // The stream of numbers is fixed: a saved seed means the same tokens in every later version.
    assert_eq!(draw(Some(5), 0)[..4], [201, 715, 816, 867]);
}

#[test]
fn logits_that_are_no_numbers_end_in_an_error_at_every_temperature() {
    for temperature in [0.0, 1.0] {
        for bad in [f32::NAN, f32::INFINITY] {
            let parameters = SamplingParameters { temperature, top_p: 0.9, ..Default::default() };
            let mut sampler = Sampler::new(parameters, &[0], Vec::new());
            let result = sampler.choose(&mut [0.0, bad, 1.0], Some(2), &mut Scratch::default());
            assert!(matches!(result, Err(StepModelError::InvalidLogits(_))), "{bad} at {temperature}: {result:?}");
        }
    }
}

#[test]
fn a_ban_by_bias_holds_even_for_the_only_likely_token() {
    let parameters =
        SamplingParameters { temperature: 1.0, logit_bias: vec![(1, -100.0)], seed: Some(1), ..Default::default() };
    let mut sampler = Sampler::new(parameters, &[0], Vec::new());
    let mut scratch = Scratch::default();
    for _ in 0..1000 {
        let chosen = sampler.choose(&mut [0.0, 20.0, 0.0], None, &mut scratch).unwrap();
        assert_ne!(chosen.token, 1);
    }
}

#[test]
fn the_scratch_memory_stops_growing() {
    let mut scratch = Scratch::default();
    let logits: Vec<f32> = (0..50_000).map(|token| ((token * 7919 % 50_021) as f32) / 2500.0).collect();
    let mut samplers: Vec<Sampler> = [(0, 1.0), (40, 1.0), (0, 0.95), (40, 0.95)]
        .map(|(top_k, top_p)| {
            let parameters = SamplingParameters { temperature: 0.8, top_k, top_p, ..Default::default() };
            Sampler::new(parameters, &[0], Vec::new())
        })
        .into();
    let mut after_first = None;
    for _ in 0..3 {
        for sampler in &mut samplers {
            sampler.choose(&mut logits.clone(), None, &mut scratch).unwrap();
        }
        let capacity = (scratch.weights.capacity(), scratch.candidates.capacity());
        assert_eq!(*after_first.get_or_insert(capacity), capacity);
    }
}
