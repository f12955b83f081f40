//! The readable reference: one query head at a time, all its scores at once.

use half::f16;

use super::{AttentionOptions, AttentionRow};
use crate::PAGE_TOKENS;

/// Attention of all queries of one row.
pub(super) fn attention_row(options: &AttentionOptions<'_>, row: &mut AttentionRow<'_>) {
    let head_dim = options.geometry.head_dim;
    for token in 0..row.length {
        for head in 0..options.heads {
            let at = (token * options.heads + head) * head_dim;
            let query = &row.query[at..at + head_dim];
            let output = &mut row.output[at..at + head_dim];
            attend(options, head, query, row.start + token, row.pages, row.first_position, output);
        }
    }
}

fn attend(
    options: &AttentionOptions<'_>,
    head: usize,
    query: &[f32],
    position: usize,
    pages: &[&[u16]],
    first_position: usize,
    output: &mut [f32],
) {
    let geometry = options.geometry;
    let head_dim = geometry.head_dim;
    let kv_head = head / options.group();
    let visible = options.first_visible(position) - first_position..position + 1 - first_position;

    let mut scores: Vec<f32> = visible
        .clone()
        .map(|key| {
            let keys = &pages[key / PAGE_TOKENS][geometry.keys_start(kv_head) + key % PAGE_TOKENS..];
            let dot: f32 = (0..head_dim).map(|dim| query[dim] * widen(keys[dim * PAGE_TOKENS])).sum();
            let score = dot * options.scale;
            options.softcap.map_or(score, |cap| cap * (score / cap).tanh())
        })
        .collect();

    let sink = options.sinks.map(|sinks| sinks[head]);
    let maximum = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - maximum).exp());
    let sum = scores.iter().sum::<f32>() + sink.map_or(0.0, |sink| (sink - maximum).exp());

    output.fill(0.0);
    for (key, weight) in visible.zip(scores) {
        let values = &pages[key / PAGE_TOKENS][geometry.values_start(kv_head) + key % PAGE_TOKENS * head_dim..];
        output.iter_mut().zip(values).for_each(|(output, &value)| *output += weight / sum * widen(value));
    }
}

fn widen(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}
