//! One window to tokens: greedy, with several hypotheses side by side, or at random.
//!
//! After `DecodingTask` of openai/whisper's decoding.py.

use linnet_kernels::Context;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    TranscribeError, TranscribeOptions,
    beam::Beams,
    compression::compression_ratio,
    filter::LogitFilter,
    network::{Sequence, StepRow, WhisperNetwork, Window},
    tokenizer::WhisperTokenizer,
};

/// What one attempt at a window gave.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decoded {
    /// Text and times, without the prompt and the end.
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    /// Mean log-probability of the tokens, the end counted.
    pub(crate) avg_logprob: f32,
    pub(crate) no_speech_prob: f32,
    pub(crate) temperature: f32,
    /// The highest temperature that was tried: above `temperature` where nothing looked right.
    pub(crate) tried: f32,
    pub(crate) compression_ratio: f32,
}

/// A text as far as it is known.
#[derive(Debug, Clone)]
pub(crate) struct Hypothesis {
    pub(crate) sequence: Sequence,
    /// After the prompt.
    pub(crate) tokens: Vec<u32>,
    pub(crate) sum_logprob: f32,
}

/// A finished text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Finished {
    /// Without the end.
    pub(crate) tokens: Vec<u32>,
    pub(crate) sum_logprob: f32,
}

/// Decodes windows of one transcription.
pub(crate) struct Decoder<'a> {
    pub(crate) network: &'a mut dyn WhisperNetwork,
    pub(crate) tokenizer: &'a WhisperTokenizer,
    pub(crate) filter: &'a LogitFilter,
    pub(crate) options: &'a TranscribeOptions,
    pub(crate) ctx: &'a Context,
    /// Asked before every step.
    pub(crate) is_cancelled: &'a dyn Fn() -> bool,
    /// Open sequences; all are closed when an attempt ends, however it ends.
    pub(crate) open: Vec<Sequence>,
}

impl Decoder<'_> {
    /// Decodes a window after `prompt`, which ends with the start of transcript and what belongs to it.
    pub(crate) fn decode(
        &mut self,
        window: Window,
        prompt: &[u32],
        temperature: f32,
        seed: u64,
    ) -> Result<Decoded, TranscribeError> {
        let attempt = self.attempt(window, prompt, temperature, seed);
        for sequence in std::mem::take(&mut self.open) {
            self.network.close(sequence);
        }
        let (finished, no_speech_prob) = attempt?;
        let rank = |text: &Finished| rank(text, self.options.length_penalty);
        let best = finished.into_iter().reduce(|best, other| if rank(&other) > rank(&best) { other } else { best });
        let Finished { mut tokens, sum_logprob } = best.unwrap_or(Finished { tokens: Vec::new(), sum_logprob: 0.0 });
        let avg_logprob = sum_logprob / (tokens.len() + 1) as f32;
        tokens.shrink_to_fit();
        let text = self.tokenizer.decode(&tokens).trim().to_owned();
        let compression_ratio = compression_ratio(&text);
        Ok(Decoded { tokens, text, avg_logprob, no_speech_prob, temperature, tried: temperature, compression_ratio })
    }

    fn attempt(
        &mut self,
        window: Window,
        prompt: &[u32],
        temperature: f32,
        seed: u64,
    ) -> Result<(Vec<Finished>, f32), TranscribeError> {
        let special = *self.tokenizer.special();
        let sot = prompt.iter().position(|&token| token == special.sot).unwrap_or(prompt.len() - 1);
        let first = self.network.open(window)?;
        self.open.push(first);
        let mut logits = Vec::new();
        let row = StepRow { sequence: first, tokens: prompt, outputs: sot..prompt.len() };
        self.step(&[row], &mut logits)?;
        let n_vocab = self.network.dimensions().n_vocab;
        let no_speech_prob = self.probability(&logits[..n_vocab], special.no_speech);
        logits.drain(..logits.len() - n_vocab);

        let begun = Hypothesis { sequence: first, tokens: Vec::new(), sum_logprob: 0.0 };
        let room = self.network.dimensions().n_text_ctx;
        // `sample_len` of decoding.py, and what the network has positions for.
        let longest = (room / 2).min((room + 1).saturating_sub(prompt.len()));
        let finished = if temperature > 0.0 {
            self.sample(begun, &logits, longest, temperature, seed)?
        } else if self.options.beam_size > 1 {
            self.beam(begun, logits, longest)?
        } else {
            vec![self.greedy(begun, logits, longest)?]
        };
        Ok((finished, no_speech_prob))
    }

    fn greedy(
        &mut self,
        mut text: Hypothesis,
        mut line: Vec<f32>,
        longest: usize,
    ) -> Result<Finished, TranscribeError> {
        loop {
            let sum = self.filtered(&mut line, &text.tokens)?;
            let token = linnet_kernels::argmax(&line);
            text.sum_logprob += line[token] - sum;
            if token == self.tokenizer.special().eot as usize {
                break;
            }
            text.tokens.push(token as u32);
            if text.tokens.len() >= longest {
                break;
            }
            self.step_on(std::slice::from_ref(&text), &mut line)?;
        }
        Ok(Finished { tokens: text.tokens, sum_logprob: text.sum_logprob })
    }

    fn beam(
        &mut self,
        begun: Hypothesis,
        mut lines: Vec<f32>,
        longest: usize,
    ) -> Result<Vec<Finished>, TranscribeError> {
        let n_vocab = self.network.dimensions().n_vocab;
        let mut beams = Beams::new(begun, self.options.beam_size, self.options.patience, self.tokenizer.special().eot);
        for length in 1.. {
            let mut sums = Vec::with_capacity(beams.running().len());
            for (line, text) in lines.chunks_exact_mut(n_vocab).zip(beams.running()) {
                sums.push(self.filtered(line, &text.tokens)?);
            }
            let plan = beams.choose(&lines, &sums, n_vocab);
            if beams.is_complete() || length >= longest || plan.is_empty() {
                beams.take(plan, |_| None);
                break;
            }
            let mut failure = None;
            let kept = beams.take(plan, |parent| match self.network.fork(parent) {
                Ok(sequence) => {
                    self.open.push(sequence);
                    Some(sequence)
                }
                Err(error) => {
                    failure = Some(error);
                    None
                }
            });
            if let Some(error) = failure {
                return Err(error.into());
            }
            for sequence in std::mem::take(&mut self.open) {
                if kept.contains(&sequence) { self.open.push(sequence) } else { self.network.close(sequence) }
            }
            self.step_on(beams.running(), &mut lines)?;
        }
        Ok(beams.finish())
    }

    /// Draws `best_of` texts side by side.
    fn sample(
        &mut self,
        begun: Hypothesis,
        line: &[f32],
        longest: usize,
        temperature: f32,
        seed: u64,
    ) -> Result<Vec<Finished>, TranscribeError> {
        let n_vocab = self.network.dimensions().n_vocab;
        let mut rng = StdRng::seed_from_u64(seed);
        let mut finished = Vec::new();
        let mut lines = line.repeat(self.options.best_of.max(1));
        let mut shares = Vec::with_capacity(n_vocab);
        let mut running = vec![begun];
        while running.len() < self.options.best_of {
            let sequence = self.network.fork(running[0].sequence)?;
            self.open.push(sequence);
            running.push(Hypothesis { sequence, ..running[0].clone() });
        }
        loop {
            let mut going_on = Vec::with_capacity(running.len());
            for (line, mut text) in lines.chunks_exact_mut(n_vocab).zip(running) {
                let sum = self.filtered(line, &text.tokens)?;
                let token = draw(self.ctx, line, temperature, rng.random(), &mut shares);
                text.sum_logprob += line[token] - sum;
                let is_end = token == self.tokenizer.special().eot as usize;
                if !is_end {
                    text.tokens.push(token as u32);
                }
                if is_end || text.tokens.len() >= longest {
                    finished.push(Finished { tokens: text.tokens, sum_logprob: text.sum_logprob });
                } else {
                    going_on.push(text);
                }
            }
            if going_on.is_empty() {
                return Ok(finished);
            }
            running = going_on;
            self.step_on(&running, &mut lines)?;
        }
    }

    /// One step of the last token of each text.
    fn step_on(&mut self, texts: &[Hypothesis], lines: &mut Vec<f32>) -> Result<(), TranscribeError> {
        let last = |text: &Hypothesis| [text.tokens.last().copied().unwrap_or(self.tokenizer.special().sot)];
        let tokens: Vec<[u32; 1]> = texts.iter().map(last).collect();
        let rows: Vec<StepRow<'_>> = texts
            .iter()
            .zip(&tokens)
            .map(|(text, tokens)| StepRow { sequence: text.sequence, tokens, outputs: 0..1 })
            .collect();
        self.step(&rows, lines)
    }

    fn step(&mut self, rows: &[StepRow<'_>], logits: &mut Vec<f32>) -> Result<(), TranscribeError> {
        if (self.is_cancelled)() {
            return Err(TranscribeError::Cancelled);
        }
        Ok(self.network.step(rows, logits)?)
    }

    fn filtered(&self, line: &mut [f32], sampled: &[u32]) -> Result<f32, TranscribeError> {
        let sum = self.filter.apply(self.ctx, line, sampled);
        if sum.is_finite() { Ok(sum) } else { Err(TranscribeError::NotFinite) }
    }

    fn probability(&self, line: &[f32], token: u32) -> f32 {
        (line[token as usize] - linnet_kernels::log_sum_exp(self.ctx, line)).exp()
    }
}

/// How good a finished text is (`MaximumLikelihoodRanker` of decoding.py).
pub(crate) fn rank(text: &Finished, length_penalty: Option<f32>) -> f32 {
    let length = text.tokens.len().max(1) as f32;
    // Google's NMT paper (Wu et al. 2016), equation 14.
    text.sum_logprob / length_penalty.map_or(length, |penalty| ((5.0 + length) / 6.0).powf(penalty))
}

/// The first token at which the sum of the probabilities at `temperature` passes `uniform`. `shares` is room to work in.
fn draw(ctx: &Context, line: &[f32], temperature: f32, uniform: f64, shares: &mut Vec<f32>) -> usize {
    shares.clear();
    shares.extend(line.iter().map(|logit| logit / temperature));
    linnet_kernels::softmax_in_place(ctx, shares, line.len());
    let mut left = uniform;
    for (token, &share) in shares.iter().enumerate() {
        left -= f64::from(share);
        if left < 0.0 {
            return token;
        }
    }
    // Rounding left nothing for the last one.
    linnet_kernels::argmax(line)
}

#[cfg(test)]
mod tests {
    use linnet_kernels::Context;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::draw;

    #[test]
    fn draws_follow_the_probabilities_at_their_temperature() {
        let logits = [1.0f32.ln(), f32::NEG_INFINITY, 3.0f32.ln(), 4.0f32.ln()];
        let mut rng = StdRng::seed_from_u64(7);
        // At temperature 0.5 probabilities are as the squares: 1, 9, 16.
        for (temperature, expected) in
            [(1.0, [1.0 / 8.0, 0.0, 3.0 / 8.0, 0.5]), (0.5, [1.0 / 26.0, 0.0, 9.0 / 26.0, 16.0 / 26.0])]
        {
            let mut counts = [0u32; 4];
            let mut shares = Vec::new();
            for _ in 0..20_000 {
                counts[draw(&Context::new(1), &logits, temperature, rng.random(), &mut shares)] += 1;
            }
            for (count, expected) in counts.iter().zip(expected) {
                let found = f64::from(*count) / 20_000.0;
                // Four standard deviations.
                assert!(
                    (found - expected).abs() <= 4.0 * (expected * (1.0 - expected) / 20_000.0).sqrt(),
                    "{counts:?}"
                );
            }
        }
    }
}
