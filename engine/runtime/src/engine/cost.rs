//! How long a step takes, learned from the steps before it.

use std::time::Duration;

/// What a step's time depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StepLoad {
    /// Tokens of prompts.
    pub(super) prompt_tokens: usize,
    /// Rows of a single token.
    pub(super) decode_rows: usize,
    /// For each token how many it attends to, summed up: what attention costs beyond the weights.
    pub(super) pairs: usize,
}

impl StepLoad {
    /// Adds a row of `tokens` tokens that follow `held` ones.
    pub(super) fn add(&mut self, held: usize, tokens: usize) {
        if tokens > 1 {
            self.prompt_tokens += tokens;
        } else {
            self.decode_rows += tokens;
        }
        self.pairs += tokens * held + tokens * (tokens + 1) / 2;
    }

    fn features(&self) -> [f64; FEATURES] {
        let tokens = (self.prompt_tokens + self.decode_rows) as f64;
        [1.0, tokens / TOKEN_UNIT, self.pairs as f64 / PAIR_UNIT]
    }
}

/// A constant, the tokens, the pairs.
const FEATURES: usize = 3;
/// Units that make the features numbers around 1.
const TOKEN_UNIT: f64 = 128.0;
const PAIR_UNIT: f64 = 128.0 * 1024.0;
/// What a step counts beside the one after it: some thirty steps are remembered.
const MEMORY: f64 = 0.97;
/// How strongly the coefficients are drawn to what little is known without them, in steps.
const DOUBT: f64 = 0.05;
/// Sweeps over the coefficients per step; they begin where the last step left them.
const SWEEPS: usize = 12;
/// A step that takes longer than this many times what was expected counts as if it took that long: the machine did
/// something else meanwhile. If it stays slow, the model follows within a few steps.
const SURPRISE: f64 = 3.0;
/// A prompt token costs at most this part of a step that decodes one row, where no prompt was seen yet: reading the
/// weights is what such a step does, and a prompt's tokens share it.
const UNSEEN_TOKEN: f64 = 0.25;

/// The time of steps with prompt tokens as `a + b * tokens + c * pairs` with coefficients that are never negative, fitted to
/// the latest steps by least squares with exponential forgetting.
///
/// Steps that only decode run on other kernels and say little about prompts; they are a guess until a prompt was seen.
#[derive(Debug, Clone, Default)]
pub(super) struct CostModel {
    /// Sums over the steps seen, each step weighed by its age and by its size.
    products: [[f64; FEATURES]; FEATURES],
    targets: [f64; FEATURES],
    coefficients: [f64; FEATURES],
    /// Seconds and tokens of the steps seen, for the rate that stands in where little is known.
    seconds: f64,
    tokens: f64,
    steps: usize,
    /// The mean of how far steps were from what was expected, as a part of it.
    error: f64,
    /// Seconds of a step that decodes, by its slowest recent case.
    decode: f64,
}

impl CostModel {
    /// Learns from a step.
    pub(super) fn observe(&mut self, load: &StepLoad, took: Duration) {
        let took = took.as_secs_f64();
        if load.prompt_tokens == 0 {
            if load.decode_rows > 0 {
                self.decode = if self.decode == 0.0 { took } else { self.decode + 0.2 * (took - self.decode) };
            }
            return;
        }
        let expected = self.predict(load);
        let took = if self.steps >= 4 && expected > 0.0 { took.min(SURPRISE * expected) } else { took };
        if self.steps > 0 && expected > 0.0 {
            self.error += 0.1 * ((took - expected).abs() / expected - self.error);
        }
        let features = load.features();
        // Relative errors matter: a small step is worth as much as a large one.
        let weight = 1.0 / features[1].max(0.05);
        for (row, &feature) in features.iter().enumerate() {
            for (column, &other) in features.iter().enumerate() {
                self.products[row][column] = MEMORY * self.products[row][column] + weight * feature * other;
            }
            self.targets[row] = MEMORY * self.targets[row] + weight * feature * took;
        }
        self.seconds = MEMORY * self.seconds + took;
        self.tokens = MEMORY * self.tokens + features[1];
        self.steps += 1;
        self.fit();
    }

    /// Least squares by coordinate descent, which keeps each coefficient from becoming negative.
    fn fit(&mut self) {
        let guess = [0.0, self.seconds / self.tokens, 0.0];
        if self.steps == 1 {
            self.coefficients = guess;
        }
        for _ in 0..SWEEPS {
            for (index, guess) in guess.into_iter().enumerate() {
                let others: f64 = (0..FEATURES)
                    .filter(|&other| other != index)
                    .map(|other| self.products[index][other] * self.coefficients[other])
                    .sum();
                let numerator = self.targets[index] - others + DOUBT * guess;
                self.coefficients[index] = (numerator / (self.products[index][index] + DOUBT)).max(0.0);
            }
        }
    }

    /// The seconds that a step with prompt tokens is expected to take; 0 where nothing was seen yet.
    pub(super) fn predict(&self, load: &StepLoad) -> f64 {
        if self.steps == 0 {
            let tokens = (load.prompt_tokens + load.decode_rows) as f64;
            return self.decode * tokens * UNSEEN_TOKEN;
        }
        load.features().iter().zip(self.coefficients).map(|(feature, coefficient)| feature * coefficient).sum()
    }

    /// The expected time that a step may have so that it most likely stays within `bound`: the less reliable the
    /// expectations were, the further below it.
    pub(super) fn aim(&self, bound: Duration) -> f64 {
        bound.as_secs_f64() / (1.2 + 2.0 * self.error).min(3.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn load(held: usize, tokens: usize, decode_rows: usize) -> StepLoad {
        let mut load = StepLoad::default();
        load.add(held, tokens);
        (0..decode_rows).for_each(|_| load.add(100, 1));
        load
    }

    /// 3 ms, 0.5 ms a token, 0.2 us a pair.
    fn true_seconds(load: &StepLoad) -> f64 {
        0.003 + 0.0005 * (load.prompt_tokens + load.decode_rows) as f64 + 2e-7 * load.pairs as f64
    }

    fn learn(model: &mut CostModel, load: &StepLoad, factor: f64) {
        model.observe(load, Duration::from_secs_f64(factor * true_seconds(load)));
    }

    #[test]
    fn the_growing_cost_of_attention_is_learned_while_a_prompt_is_read() {
        let mut model = CostModel::default();
        for chunk in 0..32 {
            let load = load(chunk * 128, 128, 2);
            if chunk > 4 {
                let error = model.predict(&load) / true_seconds(&load);
                assert!((0.85..1.15).contains(&error), "chunk {chunk}: {error}");
            }
            learn(&mut model, &load, 1.0);
        }
        // The steps were alike in size, so what another size takes is a guess, but one between the extremes.
        let small = load(4096, 16, 2);
        assert!(model.predict(&small) <= 1.1 * true_seconds(&load(4096, 128, 2)));
        assert!(model.predict(&small) >= 0.3 * true_seconds(&small));
    }

    #[test]
    fn noise_is_averaged_and_makes_the_aim_careful() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let (mut calm, mut noisy) = (CostModel::default(), CostModel::default());
        for _ in 0..300 {
            let load = load(random.random_range(0..4000), random.random_range(2..128), random.random_range(0..8));
            learn(&mut calm, &load, 1.0);
            // One step in twenty is interrupted for long.
            let pause = if random.random_bool(0.05) { 6.0 } else { 1.0 };
            learn(&mut noisy, &load, pause * random.random_range(0.8..1.2));
        }
        for (held, tokens) in [(0, 128), (4000, 128), (2000, 32), (4000, 16)] {
            let load = load(held, tokens, 4);
            for (model, tolerance) in [(&calm, 0.1), (&noisy, 0.6)] {
                let error = model.predict(&load) / true_seconds(&load) - 1.0;
                assert!(error.abs() < tolerance, "{held} {tokens}: {error}");
            }
        }
        let bound = Duration::from_millis(200);
        assert!(noisy.aim(bound) < 0.85 * calm.aim(bound));
        assert!(noisy.aim(bound) > 0.06 && calm.aim(bound) < 0.17);
    }

    #[test]
    fn a_machine_that_becomes_slow_is_noticed_within_some_steps() {
        let mut model = CostModel::default();
        (0..100).for_each(|chunk| learn(&mut model, &load(chunk % 32 * 128, 128, 1), 1.0));
        (0..25).for_each(|chunk| learn(&mut model, &load(chunk * 128, 128, 1), 4.0));
        let load = load(2048, 128, 1);
        assert!(model.predict(&load) > 2.0 * true_seconds(&load));
    }

    #[test]
    fn before_the_first_prompt_a_decode_step_is_the_measure() {
        let mut model = CostModel::default();
        assert_eq!(model.predict(&load(0, 128, 1)), 0.0);
        model.observe(&load(5, 1, 0), Duration::from_millis(8));
        let expected = model.predict(&load(0, 128, 1));
        assert!((0.2..0.3).contains(&expected), "{expected}");
    }

    #[test]
    fn coefficients_stay_sane_whatever_is_measured() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(4);
        let mut model = CostModel::default();
        for _ in 0..2000 {
            let load = load(random.random_range(0..100_000), random.random_range(1..3000), random.random_range(0..64));
            model.observe(&load, Duration::from_secs_f64(random.random_range(0.0..1.0)));
            let expected = model.predict(&load);
            assert!(expected.is_finite() && expected >= 0.0, "{model:?}");
        }
    }
}
