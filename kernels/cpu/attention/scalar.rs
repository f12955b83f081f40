//! The readable reference: one query head at a time, all its scores at once.

#![allow(unsafe_code)]

use half::f16;

use super::{AttentionOptions, plan::Task, task::RowInput};
use crate::{Half, PAGE_TOKENS, Page, PageFormat, PageGeometry};

/// Attention of one task whose keys are whole (not cut into parts).
///
/// # Safety
/// `output` is the whole output of the row, `[length, heads, head_dim]`, and no one else touches the heads of the task's
/// KV head of its queries meanwhile.
pub(super) unsafe fn run(options: &AttentionOptions<'_>, input: &RowInput<'_>, task: &Task, output: *mut f32) {
    let (group, head_dim) = (options.group(), options.geometry.head_dim);
    for token in task.queries.clone() {
        for head in task.kv_head * group..(task.kv_head + 1) * group {
            let at = (token * options.heads + head) * head_dim;
            let query = &input.query[at..at + head_dim];
            // SAFETY: the caller's promise.
            let output = unsafe { std::slice::from_raw_parts_mut(output.add(at), head_dim) };
            attend(options, head, query, input.shape.start + token, input.pages, input.shape.first_position, output);
        }
    }
}

fn attend(
    options: &AttentionOptions<'_>,
    head: usize,
    query: &[f32],
    position: usize,
    pages: &[Page<'_>],
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
            let page = pages[key / PAGE_TOKENS];
            let element = |dim| element(geometry, page, (kv_head, Half::Keys), (key % PAGE_TOKENS, dim));
            let dot: f32 = (0..head_dim).map(|dim| query[dim] * element(dim)).sum();
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
        let page = pages[key / PAGE_TOKENS];
        for (dim, output) in output.iter_mut().enumerate() {
            let value = element(geometry, page, (kv_head, Half::Values), (key % PAGE_TOKENS, dim));
            *output += weight / sum * value;
        }
    }
}

/// One element of a page.
fn element(
    geometry: PageGeometry,
    page: Page<'_>,
    (kv_head, half): (usize, Half),
    (token, dim): (usize, usize),
) -> f32 {
    let elements = geometry.head_elements(page.format);
    let head = &page.data[kv_head * elements..(kv_head + 1) * elements];
    let f16_at = |place: usize| f16::from_bits(head[place]).to_f32();
    match (page.format, half) {
        (PageFormat::F16, Half::Keys) => f16_at(dim * PAGE_TOKENS + token),
        (PageFormat::F16, Half::Values) => f16_at((PAGE_TOKENS + token) * geometry.head_dim + dim),
        (PageFormat::Affine(affine), _) => affine.element(geometry, head, half, (token, dim)),
    }
}
