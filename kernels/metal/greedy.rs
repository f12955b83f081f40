//! Greedy selection over the vocabulary, without writing normalized scores.
//!
//! **What it computes.** For each row of logits `x`, of type `T`:
//!
//! - `log_sum = T(log(sum over i of exp(x[i])))`, the sum in single precision, rounded once to `T`;
//! - `score[i] = T(x[i] - log_sum)`;
//! - the lowest `i` whose score equals that of the greatest logit; [`GREEDY_NONE`] if `log_sum` is not finite: where a
//!   logit is NaN or plus infinity, or none is finite.
//!
//! This is mlx-lm's greedy step: `logits - logsumexp(logits)`, then the greatest, the lowest on ties. The rounding of the
//! score is part of it: in bfloat16 logits that differ often tie after the subtraction.
//!
//! **How.** Rounding keeps the order, so whether a tile of logits holds a best score can be told from its greatest logit.
//! Small vocabularies take one group of threads per row. Larger ones take two passes: each tile's maximum and sum of
//! `exp(x - maximum)`; then one group per row joins the tiles and looks through one tile only.
//!
//! **Tolerance.** None on the index, given `log_sum`. `log_sum` itself depends on the order of summation and may round to
//! the neighbouring `T`, in the composed form as well.

use super::{
    Element, KernelSource, Launch, LaunchError, Output, SourceFile, TemplateValue, element::round_to,
    source::source_file,
};

/// What stands for a token that could not be chosen because the logits are no distribution.
pub const GREEDY_NONE: u32 = u32::MAX;

/// Threads of a group.
const THREADS: u32 = 256;
/// Logits of a tile.
const TILE: u32 = 2048;
/// The largest vocabulary of the single pass.
const SINGLE_LIMIT: usize = 4096;

const FUNCTIONS: &[SourceFile] = &[source_file!("reduce.metal"), source_file!("greedy.metal")];

/// One pass, for small vocabularies. Input `logits`, `[rows, vocabulary]`, whose rows may lie apart; output `tokens`, `[rows]`.
pub static GREEDY_SINGLE: KernelSource = KernelSource {
    name: "linnet_greedy_single",
    inputs: &["logits"],
    outputs: &["tokens"],
    functions: FUNCTIONS,
    body: source_file!("greedy_single.metal"),
};

/// The first of two passes. Input `logits`, `[rows, vocabulary]`; outputs `maxima` and `sums`, `[rows, tiles]`.
pub static GREEDY_TILES: KernelSource = KernelSource {
    name: "linnet_greedy_tiles",
    inputs: &["logits"],
    outputs: &["maxima", "sums"],
    functions: FUNCTIONS,
    body: source_file!("greedy_tiles.metal"),
};

/// The second of two passes. Inputs `logits`, `[rows, vocabulary]`, and `maxima` and `sums`, `[rows, tiles]`; output
/// `tokens`, `[rows]`.
pub static GREEDY_FINISH: KernelSource = KernelSource {
    name: "linnet_greedy_finish",
    inputs: &["logits", "maxima", "sums"],
    outputs: &["tokens"],
    functions: FUNCTIONS,
    body: source_file!("greedy_finish.metal"),
};

/// How to select greedily from logits of a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GreedyPlan {
    /// [`GREEDY_SINGLE`].
    Single(Launch),
    /// [`GREEDY_TILES`] and [`GREEDY_FINISH`].
    TwoPass {
        /// The first pass.
        tiles: Launch,
        /// The second, which takes the first one's outputs behind the logits.
        finish: Launch,
    },
}

impl GreedyPlan {
    /// Plans for `rows` rows of `vocabulary` logits.
    ///
    /// # Errors
    /// When `logits` is not a type of floats, or there are no logits, or more than an index of 32 bits counts.
    pub fn new(rows: usize, vocabulary: usize, logits: Element) -> Result<GreedyPlan, LaunchError> {
        let kernel = GREEDY_SINGLE.name;
        let unsupported = |what, got, supported| LaunchError::Unsupported { kernel, what, got, supported };
        if !logits.is_float() {
            return Err(LaunchError::UnsupportedElement { kernel, what: "logits", got: logits, supported: "floats" });
        }
        if vocabulary == 0 || vocabulary > MAX_VOCABULARY {
            return Err(unsupported("vocabulary", vocabulary, "1 to 16777216"));
        }
        if rows == 0 || rows > MAX_ROWS {
            return Err(unsupported("rows", rows, "1 to 65535"));
        }
        let element = ("T", TemplateValue::Element(logits));
        let threads = ("THREADS", TemplateValue::Int(THREADS as i32));
        let tile = ("TILE", TemplateValue::Int(TILE as i32));
        let per_row = |kernel, template| Launch {
            kernel,
            template,
            outputs: vec![Output { shape: vec![rows], element: Element::U32 }],
            grid: [THREADS, rows as u32, 1],
            threadgroup: [THREADS, 1, 1],
        };
        if vocabulary <= SINGLE_LIMIT {
            return Ok(GreedyPlan::Single(per_row(&GREEDY_SINGLE, vec![element, threads])));
        }
        let tiles = vocabulary.div_ceil(TILE as usize);
        let partial = Output { shape: vec![rows, tiles], element: Element::F32 };
        Ok(GreedyPlan::TwoPass {
            tiles: Launch {
                kernel: &GREEDY_TILES,
                template: vec![threads, tile],
                outputs: vec![partial.clone(), partial],
                grid: [THREADS * tiles as u32, rows as u32, 1],
                threadgroup: [THREADS, 1, 1],
            },
            finish: per_row(&GREEDY_FINISH, vec![element, threads, tile]),
        })
    }
}

const MAX_VOCABULARY: usize = 1 << 24;
const MAX_ROWS: usize = 65_535;

/// The logarithm of the sum of exponentials of one row, before it is rounded to the type of the logits.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let maximum = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let weight = |x: f64| if x == f64::NEG_INFINITY { 0.0 } else { (x - maximum).exp() };
    maximum + logits.iter().map(|&x| weight(f64::from(x))).sum::<f64>().ln()
}

/// What the kernels select from one row, in plain Rust. `log_sum` is [`log_sum_exp`] rounded to `element`.
#[must_use]
pub fn greedy_reference(logits: &[f32], log_sum: f32, element: Element) -> u32 {
    if !log_sum.is_finite() {
        return GREEDY_NONE;
    }
    let score = |x: f32| round_to(element, x - log_sum);
    let best = score(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    logits.iter().position(|&x| score(x) == best).map_or(GREEDY_NONE, |index| index as u32)
}
