//! What encoder and decoder layers are made of.

use super::config::INNER_WIDTH;
use crate::{error::Result, loader::Loader};
use linnet_compute::{Activation, Backend};

/// The epsilon of every norm: PyTorch's and MLX's default.
const EPSILON: f32 = 1e-5;

/// A layer norm.
pub(super) struct Norm<B: Backend> {
    weight: B::Vector,
    bias: B::Vector,
}

impl<B: Backend> Norm<B> {
    pub(super) fn load(loader: &Loader<'_, B>, path: &str, state: usize) -> Result<Self> {
        let vector = |part: &str| loader.vector(&format!("{path}.{part}"), state);
        Ok(Self { weight: vector("weight")?, bias: vector("bias")? })
    }

    pub(super) fn apply(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        Ok(backend.layer_norm(x, &self.weight, &self.bias, EPSILON)?)
    }
}

/// The projections of an attention, and the norm before it.
pub(super) struct Projections<B: Backend> {
    pub(super) norm: Norm<B>,
    pub(super) query: B::Matrix,
    pub(super) key: B::Matrix,
    pub(super) value: B::Matrix,
    pub(super) out: B::Matrix,
}

impl<B: Backend> Projections<B> {
    /// Those of `path`, whose norm is `path_ln`.
    pub(super) fn load(loader: &Loader<'_, B>, path: &str, state: usize) -> Result<Self> {
        let matrix = |name: &str, bias| loader.matrix_with_bias(&format!("{path}.{name}"), state, state, bias);
        Ok(Self {
            norm: Norm::load(loader, &format!("{path}_ln"), state)?,
            query: matrix("query", true)?,
            key: matrix("key", false)?,
            value: matrix("value", true)?,
            out: matrix("out", true)?,
        })
    }

    /// Queries, keys and values of the normed lines.
    pub(super) fn project(&self, backend: &B, x: &B::Tensor) -> Result<[B::Tensor; 3]> {
        let normed = self.norm.apply(backend, x)?;
        Ok(backend.linear_each(&normed, [&self.query, &self.key, &self.value])?)
    }
}

/// The feed-forward part of a layer.
pub(super) struct FeedForward<B: Backend> {
    norm: Norm<B>,
    widen: B::Matrix,
    narrow: B::Matrix,
}

impl<B: Backend> FeedForward<B> {
    /// That of the layer `path`.
    pub(super) fn load(loader: &Loader<'_, B>, path: &str, state: usize) -> Result<Self> {
        let inner = INNER_WIDTH * state;
        Ok(Self {
            norm: Norm::load(loader, &format!("{path}.mlp_ln"), state)?,
            widen: loader.matrix_with_bias(&format!("{path}.mlp1"), inner, state, true)?,
            narrow: loader.matrix_with_bias(&format!("{path}.mlp2"), state, inner, true)?,
        })
    }

    pub(super) fn forward(&self, backend: &B, x: B::Tensor) -> Result<B::Tensor> {
        let normed = self.norm.apply(backend, &x)?;
        let inner = backend.linear_activated(&normed, &self.widen, Activation::Gelu)?;
        Ok(backend.linear_add(&inner, &self.narrow, x)?)
    }
}
