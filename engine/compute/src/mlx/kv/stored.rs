//! Keys or values of some rows: `[rows, heads, tokens, head_dim]`, plain or affine-quantized along the last axis.

use crate::mlx::graph::{Graph, Packing, Result, data};
use mlx_rs::Array;

/// The axis of rows.
pub(super) const ROWS: usize = 0;
/// The axis of tokens.
pub(super) const TOKENS: usize = 2;

/// Keys or values.
#[derive(Debug, Clone)]
pub(crate) enum Stored {
    /// As the model computed them.
    Plain([Array; 1]),
    /// Packed words, scales and biases, with the same first three axes.
    Affine([Array; 3]),
}

impl Stored {
    pub(crate) fn plain(array: Array) -> Self {
        Self::Plain([array])
    }

    /// The arrays it is made of.
    pub(crate) fn arrays(&self) -> &[Array] {
        match self {
            Self::Plain(array) => array,
            Self::Affine(arrays) => arrays,
        }
    }

    /// The floats that they stand for.
    pub(crate) fn floats(&self, graph: &Graph, packing: Option<Packing>) -> Result<Array> {
        match (self, packing) {
            (Self::Plain([array]), _) => Ok(array.clone()),
            (Self::Affine(arrays), Some(packing)) => graph.dequantize(arrays, packing),
            (Self::Affine(_), None) => Err(crate::mlx::failure::Failure::new(
                "attention",
                "quantized keys of a store that does not say how".into(),
            )),
        }
    }

    /// How many tokens there is room for.
    pub(super) fn tokens(&self) -> usize {
        self.arrays().first().map_or(0, |array| array.dim(TOKENS as i32) as usize)
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.arrays().first().map_or(0, |array| array.dim(ROWS as i32) as usize)
    }

    /// Bytes of all arrays.
    pub(super) fn bytes(&self) -> usize {
        self.arrays().iter().map(Array::nbytes).sum()
    }

    /// The same operation on every array.
    pub(super) fn map(&self, operation: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        Ok(match self {
            Self::Plain([array]) => Self::Plain([operation(array)?]),
            Self::Affine([packed, scales, biases]) => {
                Self::Affine([operation(packed)?, operation(scales)?, operation(biases)?])
            }
        })
    }

    /// The same operation on every pair of arrays. Both must be packed alike.
    pub(super) fn zip(&self, other: &Self, operation: impl Fn(&Array, &Array) -> Result<Array>) -> Result<Self> {
        match (self, other) {
            (Self::Plain([a]), Self::Plain([b])) => Ok(Self::Plain([operation(a, b)?])),
            (Self::Affine([a, b, c]), Self::Affine([d, e, f])) => {
                Ok(Self::Affine([operation(a, d)?, operation(b, e)?, operation(c, f)?]))
            }
            _ => Err(crate::mlx::failure::Failure::new("kv", "plain and quantized keys were mixed".into())),
        }
    }

    /// Tokens `start..stop`.
    pub(super) fn cut(&self, graph: &Graph, start: usize, stop: usize) -> Result<Self> {
        if start == 0 && stop == self.tokens() {
            return Ok(self.clone());
        }
        self.map(|array| graph.slice(array, TOKENS, start as i32, stop as i32))
    }

    /// Zeros as `like` holds them, with `rows` rows of `tokens` tokens.
    pub(super) fn zeros_like(&self, graph: &Graph, rows: usize, tokens: usize) -> Result<Self> {
        self.map(|array| {
            let shape = [rows as i32, array.dim(1), tokens as i32, array.dim(3)];
            graph.zeros(&shape, data::dtype_of(array))
        })
    }

    /// Followed by other tokens.
    pub(super) fn followed_by(&self, graph: &Graph, other: &Self) -> Result<Self> {
        self.zip(other, |a, b| graph.concatenate(&[a, b], TOKENS as i32))
    }

    /// One after the other; all must be packed alike, and there must be one.
    pub(super) fn joined(graph: &Graph, parts: &[Self]) -> Result<Self> {
        match parts {
            [] => Err(crate::mlx::failure::Failure::new("kv", "no tokens to join".into())),
            [one] => Ok(one.clone()),
            [first, ..] => {
                let count = first.arrays().len();
                if parts.iter().any(|part| part.arrays().len() != count) {
                    return Err(crate::mlx::failure::Failure::new("kv", "plain and quantized keys were mixed".into()));
                }
                let join = |number: usize| {
                    let arrays: Vec<&Array> = parts.iter().filter_map(|part| part.arrays().get(number)).collect();
                    graph.concatenate(&arrays, TOKENS as i32)
                };
                match first {
                    Self::Plain(_) => Ok(Self::Plain([join(0)?])),
                    Self::Affine(_) => Ok(Self::Affine([join(0)?, join(1)?, join(2)?])),
                }
            }
        }
    }

    /// Followed by other rows.
    pub(super) fn above(&self, graph: &Graph, other: &Self) -> Result<Self> {
        self.zip(other, |a, b| graph.concatenate(&[a, b], ROWS as i32))
    }

    /// With zeros for `left` tokens before and `right` tokens after.
    pub(super) fn padded(&self, graph: &Graph, left: usize, right: usize) -> Result<Self> {
        let mut padded = self.clone();
        if left > 0 {
            padded = self.zeros_like(graph, self.rows(), left)?.followed_by(graph, &padded)?;
        }
        if right > 0 {
            padded = padded.followed_by(graph, &self.zeros_like(graph, self.rows(), right)?)?;
        }
        Ok(padded)
    }

    /// The rows of these numbers, ascending.
    pub(super) fn keep_rows(&self, graph: &Graph, keep: &[usize]) -> Result<Self> {
        if keep.len() == self.rows() {
            return Ok(self.clone());
        }
        let first = keep.first().copied().unwrap_or(0);
        if keep.iter().enumerate().all(|(index, &row)| row == first + index) {
            let stop = (first + keep.len()) as i32;
            return self.map(|array| graph.slice(array, ROWS, first as i32, stop));
        }
        let rows: Vec<u32> = keep.iter().map(|&row| row as u32).collect();
        let indices = data::from_u32(&rows, &[rows.len() as i32])?;
        self.map(|array| graph.take(array, &indices, ROWS as i32))
    }

    /// Each row's tokens moved on by its shift, those at the end to the beginning.
    pub(super) fn rolled_each(&self, graph: &Graph, shifts: &[usize]) -> Result<Self> {
        let tokens = self.tokens() as i32;
        let shifts: Vec<i32> = shifts.iter().map(|&shift| shift as i32).collect();
        let shifts = data::from_i32(&shifts, &[shifts.len() as i32, 1, 1, 1])?;
        let places = graph.reshape(&graph.arange(0, tokens)?, &[1, 1, tokens, 1])?;
        let sources = graph.remainder(&graph.subtract(&places, &shifts)?, &data::integer(tokens)?)?;
        self.map(|array| graph.take_along(array, &sources, TOKENS as i32))
    }

    /// All tokens moved back by `shift`, those at the beginning to the end.
    pub(super) fn rolled_back(&self, graph: &Graph, shift: usize) -> Result<Self> {
        self.map(|array| graph.roll(array, -(shift as i32), TOKENS as i32))
    }

    /// Quantized, if it is not yet.
    pub(super) fn quantized(&self, graph: &Graph, packing: Packing) -> Result<Self> {
        match self {
            Self::Plain([array]) => Ok(Self::Affine(graph.quantize(array, packing)?)),
            Self::Affine(_) => Ok(self.clone()),
        }
    }

    /// As arrays of the model's type.
    pub(crate) fn dequantized(&self, graph: &Graph, packing: Packing) -> Result<Self> {
        match self {
            Self::Plain(_) => Ok(self.clone()),
            Self::Affine(arrays) => Ok(Self::plain(graph.dequantize(arrays, packing)?)),
        }
    }
}
