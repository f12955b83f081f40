//! Rotary position embedding from a given table of inverse frequencies.
//!
//! All of mlx-lm's variants (plain, linear, llama3, yarn, longrope, partial) differ only in the inverse frequencies, in a
//! factor on the input and in which elements pair up; whoever reads the model's configuration computes those.

use std::sync::OnceLock;

use crate::{Context, parallel::for_row_parts};

/// Positions whose cosines and sines are computed together when the first of them is needed.
const CHUNK_POSITIONS: usize = 256;

/// Chunks that a table can keep: 2^20 positions, beyond the context of any model we run. Later positions work, uncached.
const CACHED_CHUNKS: usize = 4096;

/// What a model's rotary embedding rotates and how fast.
///
/// The angle at `position` of pair `i` is `position as f32 * inverse_frequencies[i]`, rounded to f32 as MLX does; its
/// cosine and sine are taken in f64 and rounded, then multiplied by `input_scale`. They are kept per position, in chunks
/// computed on demand: `2 * dims * 4` bytes per position.
#[derive(Debug)]
pub struct RopeTable {
    dims: usize,
    traditional: bool,
    inverse_frequencies: Vec<f32>,
    input_scale: f32,
    chunks: Vec<OnceLock<Box<[f32]>>>,
}

impl RopeTable {
    /// A table that rotates the first `2 * inverse_frequencies.len()` elements of each head. `traditional` pairs
    /// neighbours (0 with 1, 2 with 3, ...); otherwise the two halves of the rotated part pair up. `input_scale`
    /// multiplies the rotated part (yarn's and longrope's attention factor; 1 for all others).
    #[must_use]
    pub fn new(inverse_frequencies: Vec<f32>, traditional: bool, input_scale: f32) -> Self {
        let chunks = (0..CACHED_CHUNKS).map(|_| OnceLock::new()).collect();
        Self { dims: 2 * inverse_frequencies.len(), traditional, inverse_frequencies, input_scale, chunks }
    }

    /// How many elements at the front of each head are rotated.
    #[must_use]
    pub fn dims(&self) -> usize {
        self.dims
    }

    /// Whether neighbours pair up instead of halves.
    #[must_use]
    pub fn traditional(&self) -> bool {
        self.traditional
    }

    /// One inverse frequency per pair.
    #[must_use]
    pub fn inverse_frequencies(&self) -> &[f32] {
        &self.inverse_frequencies
    }

    /// The factor on the rotated part.
    #[must_use]
    pub fn input_scale(&self) -> f32 {
        self.input_scale
    }

    /// Calls `work(cosines, sines)` with the `dims` factors of each element at `position`, such that
    /// `out[j] = x[j] * cosines[j] + partner(x, j) * sines[j]`.
    fn with_factors(&self, position: u32, work: &mut dyn FnMut(&[f32], &[f32])) {
        let position = position as usize;
        let stride = 2 * self.dims;
        if let Some(chunk) = self.chunks.get(position / CHUNK_POSITIONS) {
            let first = position / CHUNK_POSITIONS * CHUNK_POSITIONS;
            let chunk = chunk.get_or_init(|| {
                let mut factors = vec![0.0; CHUNK_POSITIONS * stride];
                for (index, factors) in factors.chunks_exact_mut(stride.max(1)).enumerate() {
                    self.fill_factors(first + index, factors);
                }
                factors.into_boxed_slice()
            });
            let start = position % CHUNK_POSITIONS * stride;
            let (cosines, sines) = chunk[start..start + stride].split_at(self.dims);
            work(cosines, sines);
        } else {
            let mut factors = vec![0.0; stride];
            self.fill_factors(position, &mut factors);
            let (cosines, sines) = factors.split_at(self.dims);
            work(cosines, sines);
        }
    }

    fn fill_factors(&self, position: usize, factors: &mut [f32]) {
        let (cosines, sines) = factors.split_at_mut(self.dims);
        for (pair, &inverse_frequency) in self.inverse_frequencies.iter().enumerate() {
            let (sine, cosine) = f64::from(position as f32 * inverse_frequency).sin_cos();
            let (sine, cosine) = (sine as f32 * self.input_scale, cosine as f32 * self.input_scale);
            let (first, second) = self.pair(pair);
            cosines[first] = cosine;
            cosines[second] = cosine;
            sines[first] = -sine;
            sines[second] = sine;
        }
    }

    /// The two elements of a head that pair number `pair` rotates.
    fn pair(&self, pair: usize) -> (usize, usize) {
        if self.traditional { (2 * pair, 2 * pair + 1) } else { (pair, pair + self.dims / 2) }
    }
}

/// Rotates `x` (`[tokens, heads, head_dim]`) in place; token `i` stands at `positions[i]`. Elements of each head from
/// `table.dims()` on stay as they are.
///
/// # Panics
/// If `x` is not `positions.len() * heads * head_dim` long, or the table rotates more than `head_dim` elements.
pub fn rope(ctx: &Context, x: &mut [f32], heads: usize, head_dim: usize, positions: &[u32], table: &RopeTable) {
    assert_eq!(x.len(), positions.len() * heads * head_dim, "rope: length of x against tokens * heads * head_dim");
    assert!(table.dims <= head_dim, "rope: {} rotated elements in heads of {head_dim}", table.dims);
    if x.is_empty() || table.dims == 0 {
        return;
    }
    for_row_parts(ctx, x, heads * head_dim, &|first, part| {
        for (token, &position) in part.chunks_exact_mut(heads * head_dim).zip(&positions[first..]) {
            table.with_factors(position, &mut |cosines, sines| {
                for head in token.chunks_exact_mut(head_dim) {
                    rotate(&mut head[..table.dims], table, cosines, sines);
                }
            });
        }
    });
}

fn rotate(head: &mut [f32], table: &RopeTable, cosines: &[f32], sines: &[f32]) {
    for pair in 0..table.inverse_frequencies.len() {
        let (first, second) = table.pair(pair);
        let (a, b) = (head[first], head[second]);
        head[first] = a * cosines[first] + b * sines[first];
        head[second] = b * cosines[second] + a * sines[second];
    }
}
