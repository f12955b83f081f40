//! Taking the figures: requests to an engine, timed by the engine's own clock.

use std::time::Instant;

use anyhow::{Context, bail};
use linnet_runtime::{Engine, Generation, GenerationEvent, GenerationRequest, SamplingParameters, Usage};
use serde::Serialize;

/// Tokens of the request before the first figure: caches, clocks and pages are warm after it.
const WARM_UP_TOKENS: usize = 32;

/// One figure with the runs it is the median of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figure {
    /// "prefill" or "decode".
    pub(crate) work: &'static str,
    /// Threads that computed; `None` where the backend decides itself.
    pub(crate) threads: Option<usize>,
    /// Requests at once.
    pub(crate) streams: usize,
    /// Tokens of one request: of its prompt for prefill, of its answer for decode.
    pub(crate) tokens: usize,
    /// The median, over all streams together.
    pub(crate) tokens_per_second: f64,
    /// Every run.
    pub(crate) runs: Vec<f64>,
}

/// Takes figures from one engine.
pub(crate) struct Bench<'a> {
    engine: &'a Engine,
    threads: Option<usize>,
    runs: usize,
}

impl<'a> Bench<'a> {
    /// A bench that takes each figure `runs` times; `threads` is noted in the figures.
    pub(crate) fn new(engine: &'a Engine, threads: Option<usize>, runs: usize) -> Self {
        Self { engine, threads, runs }
    }

    /// One request that does not count.
    pub(crate) fn warm_up(&self) -> anyhow::Result<()> {
        let length = WARM_UP_TOKENS.min(self.engine.context_length() / 2).max(1);
        finish(self.submit(length, length, u64::MAX)?).map(drop)
    }

    /// How fast a prompt of `length` tokens is read.
    pub(crate) fn prefill(&self, length: usize) -> anyhow::Result<Figure> {
        let run = |seed: usize| -> anyhow::Result<f64> {
            let usage = finish(self.submit(length, 1, seed as u64)?)?;
            Ok(length.saturating_sub(usage.cached_tokens) as f64 / usage.prefill_seconds)
        };
        let runs = (0..self.runs).map(run).collect::<Result<Vec<_>, _>>()?;
        Ok(self.figure("prefill", 1, length, runs))
    }

    /// How fast `streams` answers of `length` tokens are written, all together: [`decode_rate`]. The prompt is a single
    /// token, so that the answer begins in an empty context, as llama-bench's does.
    pub(crate) fn decode(&self, length: usize, streams: usize) -> anyhow::Result<Figure> {
        let run = |seed: usize| -> anyhow::Result<f64> {
            let begun = Instant::now();
            let generations: Vec<(f64, Generation)> = (0..streams)
                .map(|stream| {
                    let submitted = begun.elapsed().as_secs_f64();
                    Ok((submitted, self.submit(1, length, (seed * streams + stream) as u64)?))
                })
                .collect::<anyhow::Result<_>>()?;
            let answers = generations
                .into_iter()
                .map(|(submitted, generation)| Ok((submitted, finish(generation)?)))
                .collect::<anyhow::Result<Vec<_>>>()?;
            Ok(decode_rate(&answers))
        };
        let runs = (0..self.runs).map(run).collect::<Result<Vec<_>, _>>()?;
        Ok(self.figure("decode", streams, length, runs))
    }

    fn figure(&self, work: &'static str, streams: usize, tokens: usize, runs: Vec<f64>) -> Figure {
        Figure { work, threads: self.threads, streams, tokens, tokens_per_second: median(&runs), runs }
    }

    /// A request with a prompt of its own: a cache of earlier prompts must not help.
    fn submit(&self, prompt: usize, generate: usize, seed: u64) -> anyhow::Result<Generation> {
        let request = GenerationRequest {
            prompt: random_tokens(prompt, self.engine.vocabulary_size(), seed),
            sampling: SamplingParameters { temperature: 0.0, ..SamplingParameters::default() },
            max_tokens: Some(generate),
            ignore_eos: true,
            ..GenerationRequest::default()
        };
        self.engine.submit(request).context("the engine refused the benchmark's request")
    }
}

fn finish(mut generation: Generation) -> anyhow::Result<Usage> {
    loop {
        match generation.blocking_next() {
            Some(GenerationEvent::Finished { usage, .. }) => return Ok(usage),
            Some(GenerationEvent::Failed(error)) => return Err(error).context("the benchmark's request failed"),
            Some(_) => {}
            None => bail!("the engine ended in the middle of the benchmark"),
        }
    }
}

/// Tokens per second of answers that were submitted at these seconds: all tokens but each answer's first, which belongs
/// to its prefill, over the time from the earliest first token to the latest last one.
fn decode_rate(answers: &[(f64, Usage)]) -> f64 {
    let first = |(submitted, usage): &(f64, Usage)| submitted + usage.queue_seconds + usage.prefill_seconds;
    let begin = answers.iter().map(first).fold(f64::INFINITY, f64::min);
    let end = answers.iter().map(|answer| first(answer) + answer.1.decode_seconds).fold(0.0, f64::max);
    let tokens: usize = answers.iter().map(|(_, usage)| usage.completion_tokens.saturating_sub(1)).sum();
    tokens as f64 / (end - begin)
}

/// Tokens drawn evenly from the vocabulary, by Knuth's MMIX generator: the same on every machine.
fn random_tokens(count: usize, vocabulary: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = (state >> 33) as usize % vocabulary.max(1);
        u32::try_from(draw).unwrap_or(0)
    };
    (0..count).map(|_| next()).collect()
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_ignore_one_wild_run() {
        assert_eq!(median(&[3.0, 1.0, 1000.0]), 3.0);
        assert_eq!(median(&[4.0, 2.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn one_stream_and_several_are_measured_by_the_same_clock() {
        let usage = |queue_seconds, prefill_seconds, decode_seconds, completion_tokens| Usage {
            completion_tokens,
            queue_seconds,
            prefill_seconds,
            decode_seconds,
            ..Usage::default()
        };
        // However long the prefill took, 10 tokens follow the first in 2 seconds.
        assert_eq!(decode_rate(&[(0.0, usage(0.5, 3.5, 2.0, 11))]), 5.0);
        // Twice the same at the same time is twice as fast; a prefill's time counts for neither.
        let twice = [(0.0, usage(0.5, 3.5, 2.0, 11)), (0.0, usage(0.0, 4.0, 2.0, 11))];
        assert_eq!(decode_rate(&twice), 10.0);
        // One after the other is no faster than one.
        let in_turn = [(0.0, usage(0.0, 1.0, 2.0, 11)), (0.0, usage(3.0, 0.0, 2.0, 11))];
        assert_eq!(decode_rate(&in_turn), 5.0);
    }

    #[test]
    fn prompts_are_repeatable_differ_by_seed_and_stay_in_the_vocabulary() {
        let tokens = random_tokens(100, 50, 1);
        assert_eq!(tokens, random_tokens(100, 50, 1));
        assert_ne!(tokens, random_tokens(100, 50, 2));
        assert!(tokens.iter().all(|token| *token < 50));
        let distinct: std::collections::HashSet<u32> = tokens.into_iter().collect();
        assert!(distinct.len() > 30, "{distinct:?}");
    }
}
