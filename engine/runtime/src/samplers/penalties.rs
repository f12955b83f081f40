//! Repetition, presence and frequency penalties: tokens that occurred lately become less probable.
//!
//! Repetition: Keskar et al., "CTRL" (2019), section 4.1, in the sign-aware form: a negative logit is multiplied.
//! Presence and frequency: OpenAI's API of the same names. Each has its own window over prompt and answer.

use std::collections::HashMap;

use crate::SamplingParameters;

/// The three penalties with their windows.
#[derive(Debug)]
pub(super) struct Penalties {
    repetition: Option<(f32, Window)>,
    presence: Option<(f32, Window)>,
    frequency: Option<(f32, Window)>,
}

/// How often each token occurs among the latest ones. Kept up to date token by token, so a window as long as the context
/// costs no more than a short one.
#[derive(Debug)]
struct Window {
    /// 0 is all.
    length: usize,
    counts: HashMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(parameters: &SamplingParameters, prompt: &[u32]) -> Self {
        let window = |penalty: f32, off: &[f32], length| {
            (!off.contains(&penalty)).then(|| (penalty, Window::new(length, prompt)))
        };
        Self {
            repetition: window(parameters.repetition_penalty, &[0.0, 1.0], parameters.repetition_window),
            presence: window(parameters.presence_penalty, &[0.0], parameters.presence_window),
            frequency: window(parameters.frequency_penalty, &[0.0], parameters.frequency_window),
        }
    }

    /// Whether none of them is in use.
    pub(super) fn are_off(&self) -> bool {
        self.repetition.is_none() && self.presence.is_none() && self.frequency.is_none()
    }

    /// Notes the token that was appended to `history`.
    pub(super) fn accept(&mut self, history: &[u32]) {
        for (_, window) in [&mut self.repetition, &mut self.presence, &mut self.frequency].into_iter().flatten() {
            window.accept(history);
        }
    }

    /// Changes the logits of the tokens in the windows.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        if let Some((penalty, window)) = &self.repetition {
            window.each(logits, |logit, _| if logit < 0.0 { logit * penalty } else { logit / penalty });
        }
        if let Some((penalty, window)) = &self.presence {
            window.each(logits, |logit, _| logit - penalty);
        }
        if let Some((penalty, window)) = &self.frequency {
            window.each(logits, |logit, count| logit - penalty * count as f32);
        }
    }
}

impl Window {
    fn new(length: usize, prompt: &[u32]) -> Self {
        let latest = if length == 0 { prompt } else { &prompt[prompt.len().saturating_sub(length)..] };
        let mut counts = HashMap::new();
        for &token in latest {
            *counts.entry(token).or_insert(0) += 1;
        }
        Self { length, counts }
    }

    fn accept(&mut self, history: &[u32]) {
        if let Some(&token) = history.last() {
            *self.counts.entry(token).or_insert(0) += 1;
        }
        if self.length == 0 || history.len() <= self.length {
            return;
        }
        let left = history[history.len() - 1 - self.length];
        if let Some(count) = self.counts.get_mut(&left) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&left);
            }
        }
    }

    // The order of the map does not matter: each token's logit changes by itself.
    fn each(&self, logits: &mut [f32], change: impl Fn(f32, u32) -> f32) {
        for (&token, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = change(*logit, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_window_kept_token_by_token_equals_one_counted_anew() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        for length in [0, 1, 3, 20] {
            let mut history: Vec<u32> = (0..random.random_range(1..30)).map(|_| random.random_range(0..6)).collect();
            let mut window = Window::new(length, &history);
            for _ in 0..50 {
                history.push(random.random_range(0..6));
                window.accept(&history);
                assert_eq!(window.counts, Window::new(length, &history).counts, "window {length}");
            }
        }
    }

    #[test]
    fn values_that_change_nothing_keep_no_window() {
        let penalties = Penalties::new(&SamplingParameters::default(), &[1, 2]);
        assert!(penalties.repetition.is_none() && penalties.presence.is_none() && penalties.frequency.is_none());
        let zero = SamplingParameters { repetition_penalty: 0.0, ..Default::default() };
        assert!(Penalties::new(&zero, &[1]).repetition.is_none());
    }
}
