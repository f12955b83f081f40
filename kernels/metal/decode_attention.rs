//! Attention of one new token per row over affine-quantized keys and values.
//!
//! **What it computes.** Row `r` has queries `[heads, head_dim]` of type `T` and sees the keys from `begin` to `end` of
//! its cache: `end` is its length, `begin` its left padding or, with a window, `end - window` if that is more. Query head
//! `h` reads KV head `h / (heads / kv_heads)`. With `k` and `v` dequantized (`scale * code + bias`):
//!
//! - `score[j] = scale * (q · k[j])`, `weight[j] = exp(score[j]) / sum of exp(score)`, `out = T(sum of weight[j] * v[j])`,
//!   all in single precision; a row that sees no key gives zeros. Keys outside of the span are never read.
//!
//! Cached rows are padded to whole groups of 32, 64 or 128 columns (a head of 80 with groups of 32 is stored as 96); the
//! padding is not read.
//!
//! **How.** A group of four simdgroups takes up to four query heads of one KV head, so that each key and value is read and
//! unpacked once for all of them. Eight elements lie in a lane; a simdgroup holds one to four keys at once; each key's
//! lanes keep a softmax of their own, joined at the end. For long contexts the keys are divided among several groups
//! ([`DECODE_ATTENTION_PARTS`]), whose results are joined by a second kernel ([`DECODE_ATTENTION_JOIN`]).
//!
//! **Tolerance.** 2e-5 of the largest value against exact arithmetic, plus the rounding to `T`. The composed form (two
//! quantized products around a softmax, as mlx-lm has it) rounds scores and weights to `T` in between and is itself
//! further from exact: 1e-2 of the largest value in bfloat16, 2e-3 in float16.

use super::{
    AffineRows, Element, KernelSource, Launch, LaunchError, Output, SourceFile, TemplateValue, source::source_file,
};

const FUNCTIONS: &[SourceFile] = &[source_file!("attention.metal")];
const INPUTS: &[&str] = &[
    "queries",
    "keys",
    "key_scales",
    "key_biases",
    "values",
    "value_scales",
    "value_biases",
    "spans",
    "window",
    "scale",
];

/// The whole span in one pass.
///
/// Inputs: `queries`, `[rows, heads, 1, head_dim]`; `keys` and `values`, codes `[rows, kv_heads, tokens, words]`, each with
/// scales and biases `[rows, kv_heads, tokens, groups]`, which may all be cut out of larger arrays; `spans`, `[rows, 2]` of int32: left padding and length;
/// `window`, an int32 scalar, 0 for none; `scale`, a float scalar. Output: `out`, `[rows, heads, 1, head_dim]`.
pub static DECODE_ATTENTION: KernelSource = KernelSource {
    name: "linnet_decode_attention",
    inputs: INPUTS,
    outputs: &["out"],
    functions: FUNCTIONS,
    body: source_file!("decode_attention.metal"),
};

/// The first of two passes, over parts of the span. Inputs as [`DECODE_ATTENTION`]; outputs `part_values`,
/// `[rows, heads, parts, head_dim]`, and `part_maxima` and `part_sums`, `[rows, heads, parts]`, all floats.
pub static DECODE_ATTENTION_PARTS: KernelSource = KernelSource {
    name: "linnet_decode_attention_parts",
    inputs: INPUTS,
    outputs: &["part_values", "part_maxima", "part_sums"],
    functions: FUNCTIONS,
    body: source_file!("decode_attention_parts.metal"),
};

/// The second of two passes: takes the first one's outputs, gives `out`, `[rows, heads, 1, head_dim]`.
pub static DECODE_ATTENTION_JOIN: KernelSource = KernelSource {
    name: "linnet_decode_attention_join",
    inputs: &["part_values", "part_maxima", "part_sums"],
    outputs: &["out"],
    functions: FUNCTIONS,
    body: source_file!("decode_attention_join.metal"),
};

const SIMDGROUPS: usize = 4;
/// The most query heads of one simdgroup: each needs 17 registers of its queries and results.
const MAX_HEADS: usize = 4;
/// Keys below which a part is not worth its own group.
const PART_KEYS: usize = 256;
const MAX_PARTS: usize = 64;
/// Groups that keep a large GPU busy.
const WANTED_GROUPS: usize = 512;

/// The figures of a decode step's attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeAttention {
    /// Sequences.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head: a multiple of 8 up to 256.
    pub head_dim: usize,
    /// Bits of a code: 4 or 8.
    pub bits: usize,
    /// Columns to a scale and bias: 32, 64 or 128.
    pub group: usize,
    /// The type of queries and results.
    pub element: Element,
}

impl DecodeAttention {
    /// Columns of a cached row: `head_dim`, padded to whole groups.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.head_dim.next_multiple_of(self.group)
    }

    /// Into how many parts the keys should be divided when the longest row sees `longest`. 1 means one pass.
    #[must_use]
    pub fn parts(&self, longest: usize) -> usize {
        let groups = self.rows * self.kv_heads * self.head_groups();
        longest.div_ceil(PART_KEYS).min(WANTED_GROUPS / groups.max(1)).clamp(1, MAX_PARTS)
    }

    /// How to launch [`DECODE_ATTENTION`].
    ///
    /// # Errors
    /// When the kernel is not written for these figures.
    pub fn launch(&self) -> Result<Launch, LaunchError> {
        let out = Output { shape: vec![self.rows, self.heads, 1, self.head_dim], element: self.element };
        let mut launch = self.attend(&DECODE_ATTENTION, 1, vec![out])?;
        launch.template.insert(0, ("T", TemplateValue::Element(self.element)));
        Ok(launch)
    }

    /// How to launch [`DECODE_ATTENTION_PARTS`] and [`DECODE_ATTENTION_JOIN`].
    ///
    /// # Errors
    /// As [`DecodeAttention::launch`]; and when `parts` is not 1 to 64.
    pub fn launch_parts(&self, parts: usize) -> Result<(Launch, Launch), LaunchError> {
        if !(1..=MAX_PARTS).contains(&parts) {
            return Err(Self::unsupported("parts", parts, "1 to 64"));
        }
        let DecodeAttention { rows, heads, head_dim, element, .. } = *self;
        let scalars = Output { shape: vec![rows, heads, parts], element: Element::F32 };
        let values = Output { shape: vec![rows, heads, parts, head_dim], element: Element::F32 };
        let first = self.attend(&DECODE_ATTENTION_PARTS, parts, vec![values, scalars.clone(), scalars])?;
        let threads = head_dim.next_multiple_of(32).min(128) as u32;
        let second = Launch {
            kernel: &DECODE_ATTENTION_JOIN,
            template: vec![("T", TemplateValue::Element(element)), ("HEAD_DIM", TemplateValue::Int(head_dim as i32))],
            outputs: vec![Output { shape: vec![rows, heads, 1, head_dim], element }],
            grid: [threads, heads as u32, rows as u32],
            threadgroup: [threads, 1, 1],
        };
        Ok((first, second))
    }

    fn attend(&self, kernel: &'static KernelSource, parts: usize, outputs: Vec<Output>) -> Result<Launch, LaunchError> {
        self.check()?;
        let int = |value: usize| TemplateValue::Int(value as i32);
        let template = vec![
            ("HEAD_DIM", int(self.head_dim)),
            ("BITS", int(self.bits)),
            ("GROUP", int(self.group)),
            ("HEADS", int(self.heads_per_simdgroup())),
            ("SIMDGROUPS", int(SIMDGROUPS)),
        ];
        let threads = (32 * SIMDGROUPS) as u32;
        let grid = [threads * parts as u32, (self.kv_heads * self.head_groups()) as u32, self.rows as u32];
        Ok(Launch { kernel, template, outputs, grid, threadgroup: [threads, 1, 1] })
    }

    fn check(&self) -> Result<(), LaunchError> {
        let kernel = DECODE_ATTENTION.name;
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(8) || self.head_dim > 256 {
            return Err(Self::unsupported("head size", self.head_dim, "multiples of 8 up to 256"));
        }
        if ![4, 8].contains(&self.bits) {
            return Err(Self::unsupported("bits", self.bits, "4 and 8"));
        }
        if ![32, 64, 128].contains(&self.group) {
            return Err(Self::unsupported("group size", self.group, "32, 64 and 128"));
        }
        if !(1..=65_535).contains(&self.rows) {
            return Err(Self::unsupported("rows", self.rows, "1 to 65535"));
        }
        if !(1..=65_535).contains(&self.kv_heads) {
            return Err(Self::unsupported("KV heads", self.kv_heads, "1 to 65535"));
        }
        if self.heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let (got, factor) = (self.heads, self.kv_heads);
            return Err(LaunchError::NotAMultiple { kernel, what: "heads", got, factor_name: "KV heads", factor });
        }
        if !self.element.is_float() {
            let (what, got) = ("queries", self.element);
            return Err(LaunchError::UnsupportedElement { kernel, what, got, supported: "floats" });
        }
        Ok(())
    }

    fn unsupported(what: &'static str, got: usize, supported: &'static str) -> LaunchError {
        LaunchError::Unsupported { kernel: DECODE_ATTENTION.name, what, got, supported }
    }

    /// Query heads of one KV head that go together: even shares of at most [`MAX_HEADS`].
    fn heads_per_simdgroup(&self) -> usize {
        let shared = self.heads / self.kv_heads;
        shared.div_ceil(shared.div_ceil(MAX_HEADS))
    }

    fn head_groups(&self) -> usize {
        (self.heads / self.kv_heads).div_ceil(self.heads_per_simdgroup())
    }
}

/// What the kernels compute, in plain Rust and before the rounding to `T`. `keys` and `values` have
/// `rows * kv_heads * capacity` rows of [`DecodeAttention::columns`]; a span is left padding and length.
#[must_use]
pub fn decode_attention_reference(
    figures: &DecodeAttention,
    queries: &[f32],
    keys: &AffineRows<'_>,
    values: &AffineRows<'_>,
    spans: &[[i32; 2]],
    window: i32,
    scale: f32,
) -> Vec<f32> {
    let DecodeAttention { heads, kv_heads, head_dim, .. } = *figures;
    let capacity = keys.codes.len() * 32 / keys.bits / keys.columns / kv_heads / spans.len();
    let mut out = Vec::with_capacity(queries.len());
    for (index, query) in queries.chunks(head_dim).enumerate() {
        let (row, kv_head) = (index / heads, index % heads / (heads / kv_heads));
        let [padding, length] = spans[row].map(|place| place.max(0) as usize);
        let end = length.min(capacity);
        let begin = if window > 0 { padding.max(end.saturating_sub(window as usize)) } else { padding };
        let line = |key: usize| (row * kv_heads + kv_head) * capacity + key;
        let span = begin.min(end)..end;
        let scores: Vec<f32> = span
            .clone()
            .map(|key| {
                let product = query.iter().enumerate().map(|(i, q)| q * keys.value(line(key), i)).sum::<f32>();
                scale * product
            })
            .collect();
        let maximum = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|score| (score - maximum).exp()).collect();
        let sum: f32 = weights.iter().sum();
        out.extend((0..head_dim).map(|i| {
            let value: f32 = span.clone().zip(&weights).map(|(key, weight)| weight * values.value(line(key), i)).sum();
            if weights.is_empty() { 0.0 } else { value / sum }
        }));
    }
    out
}
