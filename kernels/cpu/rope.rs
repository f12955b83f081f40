//! Rotary position embedding from a given table of inverse frequencies.
//!
//! All of mlx-lm's variants (plain, linear, llama3, yarn, longrope, partial) differ only in the inverse frequencies, in a
//! factor on the input and in which elements pair up; whoever reads the model's configuration computes those.

#![allow(unsafe_code)]

use std::sync::OnceLock;

use crate::{
    Context,
    parallel::for_row_parts,
    simd::{Kernel, Vector, VectorKernel, dispatch, level_for_multiple},
};

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
    // Each half or the whole of the rotated part must be made of whole vectors.
    let isa = level_for_multiple(ctx.isa(), if table.traditional { table.dims } else { table.dims / 2 });
    for_row_parts(ctx, x, heads * head_dim, &|first, part| {
        for (token, &position) in part.chunks_exact_mut(heads * head_dim).zip(&positions[first..]) {
            table.with_factors(position, &mut |cosines, sines| {
                dispatch(isa, Rotation { token: &mut *token, head_dim, table, cosines, sines });
            });
        }
    });
}

/// Rotates all heads of one token.
struct Rotation<'a> {
    token: &'a mut [f32],
    head_dim: usize,
    table: &'a RopeTable,
    cosines: &'a [f32],
    sines: &'a [f32],
}

impl Kernel for Rotation<'_> {
    fn scalar(self) {
        for head in self.token.chunks_exact_mut(self.head_dim) {
            for pair in 0..self.table.inverse_frequencies.len() {
                let (first, second) = self.table.pair(pair);
                let (a, b) = (head[first], head[second]);
                head[first] = a * self.cosines[first] + b * self.sines[first];
                head[second] = b * self.cosines[second] + a * self.sines[second];
            }
        }
    }
}

impl VectorKernel for Rotation<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn vector<V: Vector>(self) {
        let dims = self.table.dims;
        let half = dims / 2;
        let (cosines, sines) = (self.cosines, self.sines);
        assert!(cosines.len() == dims && sines.len() == dims && self.head_dim >= dims);
        for head in self.token.chunks_exact_mut(self.head_dim) {
            // SAFETY: offsets stay below dims, within head, cosines and sines; dims (half of it, when halves pair up) is
            // a multiple of LANES by the choice of the level; the instruction set is the caller's promise.
            unsafe {
                let load = |values: &[f32], at: usize| V::load(values.as_ptr().add(at));
                if self.table.traditional {
                    for at in (0..dims).step_by(V::LANES) {
                        let x = load(head, at);
                        let rotated = x.swap_pairs().mul_add(load(sines, at), x.mul(load(cosines, at)));
                        rotated.store(head.as_mut_ptr().add(at));
                    }
                } else {
                    for at in (0..half).step_by(V::LANES) {
                        let (a, b) = (load(head, at), load(head, at + half));
                        let (cosine, sine) = (load(cosines, at), load(sines, at + half));
                        a.mul(cosine).sub(b.mul(sine)).store(head.as_mut_ptr().add(at));
                        a.mul_add(sine, b.mul(cosine)).store(head.as_mut_ptr().add(at + half));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::{CACHED_CHUNKS, CHUNK_POSITIONS, RopeTable, rope};
    use crate::{Context, Isa};

    fn frequencies(count: usize) -> Vec<f32> {
        (0..count).map(|pair| 10_000f32.powf(-(pair as f32) / count as f32)).collect()
    }

    /// The definition, with f32 angles as the table documents and all else in f64.
    fn expected(head: &[f32], position: u32, table: &RopeTable) -> Vec<f64> {
        let mut out: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
        for (pair, &frequency) in table.inverse_frequencies().iter().enumerate() {
            let angle = f64::from(position as f32 * frequency);
            let (first, second) =
                if table.traditional() { (2 * pair, 2 * pair + 1) } else { (pair, pair + table.dims() / 2) };
            let scale = f64::from(table.input_scale());
            let (a, b) = (f64::from(head[first]) * scale, f64::from(head[second]) * scale);
            out[first] = a * angle.cos() - b * angle.sin();
            out[second] = a * angle.sin() + b * angle.cos();
        }
        out
    }

    #[test]
    fn rope_agrees_with_its_definition_on_every_level() {
        let mut rng = StdRng::seed_from_u64(50);
        let beyond = (CACHED_CHUNKS * CHUNK_POSITIONS) as u32;
        let positions = [0, 1, 2, 255, 256, 4095, 100_000, beyond - 1, beyond, u32::MAX];
        for (head_dim, dims) in [(64, 64), (64, 32), (80, 32), (128, 128), (96, 72), (8, 2), (40, 40), (20, 12), (7, 6)]
        {
            for traditional in [false, true] {
                for input_scale in [1.0, 1.35] {
                    let table = RopeTable::new(frequencies(dims / 2), traditional, input_scale);
                    let heads = 3;
                    let x: Vec<f32> =
                        (0..=positions.len() * heads * head_dim).map(|_| rng.random_range(-2.0..2.0)).collect();
                    for isa in Isa::available() {
                        let mut got = x.clone();
                        rope(&Context::with_isa(isa, 2), &mut got[1..], heads, head_dim, &positions, &table);
                        let heads_in_and_out = x[1..].chunks_exact(head_dim).zip(got[1..].chunks_exact(head_dim));
                        for (index, (head, got)) in heads_in_and_out.enumerate() {
                            for (&got, expected) in got.iter().zip(expected(head, positions[index / heads], &table)) {
                                let error = (f64::from(got) - expected).abs();
                                assert!(
                                    error < 1e-6,
                                    "{isa:?} {head_dim}/{dims} traditional {traditional} head {index}"
                                );
                            }
                            assert_eq!(got[dims..], head[dims..], "what is not rotated stays as it is");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn many_tokens_are_shared_out_between_threads() {
        let table = RopeTable::new(frequencies(32), false, 1.0);
        let positions: Vec<u32> = (700..1300).collect();
        let x: Vec<f32> = (0..positions.len() * 2 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
        let run = |threads: usize| {
            let mut x = x.clone();
            rope(&Context::new(threads), &mut x, 2, 64, &positions, &table);
            x
        };
        assert_eq!(run(1), run(3));
        assert_ne!(run(1), x);
    }

    #[test]
    fn a_table_without_pairs_changes_nothing() {
        let mut x = [1.0, 2.0];
        rope(&Context::new(1), &mut x, 1, 2, &[9], &RopeTable::new(Vec::new(), false, 1.0));
        assert_eq!(x, [1.0, 2.0]);
    }
}
