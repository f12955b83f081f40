//! Choosing tokens on the device, so that the next step can begin before the host knows them.

use super::{
    graph::{Graph, Result, data, dtype},
    tokens::Id,
};
use crate::Draw;
use mlx_rs::Array;
use std::rc::Rc;

/// What stands for a token that could not be chosen because the logits are no numbers.
pub(super) const NO_TOKEN: u32 = linnet_kernels::metal::GREEDY_NONE;

/// Chooses one token for each line of `[lines, vocabulary]`. Lines with equal ways of drawing are computed together.
pub(super) fn choose(graph: &Graph, logits: &Array, draws: &[&Draw]) -> Result<Vec<Id>> {
    if draws.iter().all(|draw| matches!(draw, Draw::Greedy)) {
        let tokens = Rc::new(greedy(graph, logits)?);
        return Ok((0..draws.len()).map(|line| Id::Device(Rc::clone(&tokens), line)).collect());
    }
    let mut ids = vec![None; draws.len()];
    for line in 0..draws.len() {
        if ids[line].is_some() {
            continue;
        }
        let alike: Vec<usize> = (line..draws.len()).filter(|&other| draws[other].is_alike(draws[line])).collect();
        let rows = if alike.len() == draws.len() { logits.clone() } else { pick(graph, logits, &alike)? };
        let tokens = match draws[line] {
            Draw::Greedy => greedy(graph, &rows)?,
            Draw::Random { temperature, top_p, top_k, min_p, .. } => {
                let uniform: Vec<f32> = alike.iter().map(|&line| draws[line].uniform() as f32).collect();
                random(
                    graph,
                    &rows,
                    &Narrowing { temperature: *temperature, top_p: *top_p, top_k: *top_k, min_p: *min_p },
                    &uniform,
                )?
            }
        };
        let tokens = Rc::new(tokens);
        for (index, line) in alike.into_iter().enumerate() {
            ids[line] = Some(Id::Device(Rc::clone(&tokens), index));
        }
    }
    Ok(ids.into_iter().flatten().collect())
}

struct Narrowing {
    temperature: f32,
    top_p: f32,
    top_k: usize,
    min_p: f32,
}

fn pick(graph: &Graph, logits: &Array, lines: &[usize]) -> Result<Array> {
    let lines: Vec<u32> = lines.iter().map(|&line| line as u32).collect();
    graph.take(logits, &data::from_u32(&lines, &[lines.len() as i32])?, 0)
}

/// As mlx-lm's greedy sampler: the greatest of the log-probabilities in the model's own type, the lowest id on ties. (In
/// 16 bits the subtraction rounds, so ties there are not always ties of the logits.)
fn greedy(graph: &Graph, logits: &Array) -> Result<Array> {
    if let Some(kernels) = graph.kernels()
        && let Some(tokens) = kernels.greedy(logits)?
    {
        return Ok(tokens);
    }
    let total = graph.logsumexp_last(logits)?;
    let tokens = graph.argmax_last(&graph.subtract(logits, &total)?)?;
    guard(graph, &tokens, &total)
}

/// Replaces tokens of lines whose logits are no distribution. All are `[lines, 1]`, as a decode step takes them.
fn guard(graph: &Graph, tokens: &Array, total: &Array) -> Result<Array> {
    graph.select(&graph.is_finite(total)?, tokens, &data::from_u32(&[NO_TOKEN], &[])?)
}

/// mlx-lm 0.32.2's filters in its order (`sample_utils.py`), then a draw by the inverse of the distribution function:
/// the first token, by id, at which the sum of probabilities passes `uniform`.
fn random(graph: &Graph, logits: &Array, narrowing: &Narrowing, uniform: &[f32]) -> Result<Array> {
    let number = |value: f64| graph.scalar(value, dtype::F32);
    let never = number(f64::NEG_INFINITY)?;
    let logits = graph.astype(logits, dtype::F32)?;
    let total = graph.logsumexp_last(&logits)?;
    let mut logprobs = graph.subtract(&logits, &total)?;
    let vocabulary = logprobs.dim(1);
    let Narrowing { temperature, top_p, top_k, min_p } = *narrowing;
    if top_p > 0.0 && top_p < 1.0 {
        let sorted = graph.sort_last(&logprobs)?;
        let probabilities = graph.exp(&sorted)?;
        let above = graph.cumsum_last(&probabilities, true, false)?;
        let first = |x: &Array| graph.slice(x, 1, 0, 1);
        let mass = graph.multiply(&number(f64::from(top_p))?, &graph.add(&first(&above)?, &first(&probabilities)?)?)?;
        let dropped = graph.sum_last(&graph.astype(&graph.greater_equal(&above, &mass)?, dtype::I32)?)?;
        let least = graph.take_along(&sorted, &dropped, 1)?;
        logprobs = graph.select(&graph.less(&logprobs, &least)?, &never, &logprobs)?;
    }
    if min_p > 0.0 {
        let least = graph.add(&graph.max_last(&logprobs)?, &number(f64::from(min_p).ln())?)?;
        logprobs = graph.select(&graph.less(&logprobs, &least)?, &never, &logprobs)?;
    }
    if top_k > 0 && top_k < vocabulary as usize {
        let order = graph.argpartition_last(&graph.negative(&logprobs)?, top_k as i32 - 1)?;
        let rest = graph.slice(&order, 1, top_k as i32, vocabulary)?;
        logprobs = graph.put_along(&logprobs, &rest, &never, 1)?;
    }
    let inverse = (1.0 / temperature).min(f32::MAX);
    let shifted = graph.subtract(&logprobs, &graph.max_last(&logprobs)?)?;
    let weights = graph.exp(&graph.multiply(&shifted, &number(f64::from(inverse))?)?)?;
    let sums = graph.cumsum_last(&weights, false, true)?;
    let lines = uniform.len() as i32;
    // So far below 1 that the target stays below the last sum.
    let uniform: Vec<f32> = uniform.iter().map(|uniform| uniform.min(1.0 - f32::EPSILON)).collect();
    let uniform = data::from_f32(&uniform, &[lines, 1])?;
    let target = graph.multiply(&uniform, &graph.slice(&sums, 1, vocabulary - 1, vocabulary)?)?;
    // The first token of weight at which the sums pass the target. Weights are at most 1, so they decide only where
    // rounding left no sum above it.
    let passes = graph.logical_and(&graph.greater(&sums, &target)?, &graph.greater(&weights, &number(0.0)?)?)?;
    let drawn = graph.argmax_last(&graph.select(&passes, &number(2.0)?, &weights)?)?;
    guard(graph, &drawn, &total)
}
