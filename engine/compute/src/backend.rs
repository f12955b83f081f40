//! The operations an architecture is written in.
//!
//! A model file sees tensors as opaque `[tokens, features]` values and calls the operations below in the order that
//! mlx-lm computes them. What differs between backends stays behind the trait:
//!
//! - **When** things run. `cpu` computes at once; a lazy backend builds a graph, and [`Backend::submit`] lets it start
//!   the next step before the last one's tokens were read.
//! - **How tokens are laid out.** A [`Row`] list says which tokens belong to which sequence; a backend may keep them flat
//!   or pad them, as long as [`Backend::outputs`] gives one line per wanted token, in order.
//! - **How KV is laid out.** [`Backend::attention`] stores the new keys and values and attends over all of them; the
//!   model never sees either.
//!
//! Operations that a backend can fuse have a default made of simpler ones, with the same rounding steps as mlx-lm's.

mod operands;

pub use operands::{Activation, AttentionSpec, ConvolutionSource, Draw};

use crate::{Dtype, KvLayout, KvStore, MatrixSource, Result, RopeSpec, Row, TensorView};
use std::ops::Range;

/// Where and how a model computes. One instance belongs to one engine thread.
pub trait Backend: 'static {
    /// Activations: `[tokens, features]`. Cheap to clone.
    type Tensor: Clone;
    /// A weight matrix `[out, in]` with an optional bias, laid out for this backend.
    type Matrix;
    /// A weight vector, as norms have.
    type Vector;
    /// A prepared rotary embedding.
    type Rope;
    /// A prepared step: rows, positions, masks.
    type Step;
    /// The store of keys and values.
    type Kv: KvStore;
    /// Token ids, possibly still being computed. Cheap to clone.
    type Tokens: Clone;
    /// A convolution, laid out for this backend.
    type Convolution;
    /// Keys and values of something that sequences listen to while they grow, prepared once.
    type Memory;

    /// What the bits of results depend on beside the model: state computed by a backend of another identity is not to be
    /// mixed with this one's.
    fn identity(&self) -> String;

    // --- Loading -----------------------------------------------------------------------------------------------------

    /// Takes over a weight matrix.
    ///
    /// # Errors
    /// When its parts do not fit together or its quantization is not supported.
    fn matrix(&self, source: &MatrixSource<'_>) -> Result<Self::Matrix>;

    /// Refuses weights of `bytes` bytes in all that would not fit into memory, before any of them is read.
    ///
    /// # Errors
    /// [`ComputeError::OutOfMemory`] with the figures.
    fn admit_weights(&self, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// Takes over a weight vector of floats.
    ///
    /// # Errors
    /// When it is not a vector of floats.
    fn vector(&self, source: &TensorView<'_>) -> Result<Self::Vector>;

    /// Prepares a rotary embedding for heads of `head_dim` elements.
    ///
    /// # Errors
    /// When it rotates more elements than a head has, or an odd number.
    fn rope(&self, spec: &RopeSpec, head_dim: usize) -> Result<Self::Rope>;

    /// Takes over a convolution.
    ///
    /// # Errors
    /// When its parts do not fit together.
    fn convolution(&self, source: &ConvolutionSource<'_>) -> Result<Self::Convolution>;

    /// `length` lines of positions as OpenAI's Whisper makes them (`sinusoids` of `whisper/model.py`): line `t` holds
    /// `sin(t / w)` and then `cos(t / w)` for `channels / 2` wavelengths `w` from 1 to 10,000, in floats of type `dtype`.
    ///
    /// # Errors
    /// When the channels are odd or fewer than 4, or the type holds no floats.
    fn sinusoids(&self, length: usize, channels: usize, dtype: Dtype) -> Result<Self::Tensor>;

    /// How many tokens fit into the memory that is left, if the backend knows; for a store made with `layout`.
    ///
    /// # Errors
    /// When the layout is not supported.
    fn kv_room(&self, _layout: &KvLayout) -> Result<Option<usize>> {
        Ok(None)
    }

    /// Makes an empty store for `capacity` tokens in all sequences together. Memory is taken as tokens arrive.
    ///
    /// # Errors
    /// When a layer's shape is not supported.
    fn kv(&self, layout: &KvLayout, capacity: usize) -> Result<Self::Kv>;

    // --- Steps -------------------------------------------------------------------------------------------------------

    /// Token ids from the host.
    ///
    /// # Errors
    /// When the backend fails.
    fn tokens(&self, ids: &[u32]) -> Result<Self::Tokens>;

    /// Some ranges of tokens, one after the other; known and unread ones may be mixed.
    ///
    /// # Errors
    /// When a range lies outside its tokens.
    fn join_tokens(&self, parts: &[(&Self::Tokens, Range<usize>)]) -> Result<Self::Tokens>;

    /// Prepares a step of `tokens`, cut into `rows`, and makes room for them in `kv`.
    ///
    /// # Errors
    /// When a row names a slot that is not open or that an earlier row names, or does not begin where its sequence ends,
    /// the lengths do not add up to
    /// the tokens, or the store is full. A failed call leaves the store as it was.
    fn step(&self, kv: &mut Self::Kv, rows: &[Row], tokens: &Self::Tokens) -> Result<Self::Step>;

    /// Rows of the embedding table for the step's tokens.
    ///
    /// # Errors
    /// When a token lies outside the table.
    fn embed(&self, table: &Self::Matrix, step: &Self::Step) -> Result<Self::Tensor>;

    /// Rows of a table of learned positions for the step's tokens: `[positions, features]`.
    ///
    /// # Errors
    /// When a position lies outside the table.
    fn embed_positions(&self, table: &Self::Matrix, step: &Self::Step) -> Result<Self::Tensor>;

    /// The tokens whose [`crate::Outputs`] ask for logits, one line each, in order.
    ///
    /// # Errors
    /// When the tensor does not belong to the step.
    fn outputs(&self, x: &Self::Tensor, step: &Self::Step) -> Result<Self::Tensor>;

    // --- Dense operations --------------------------------------------------------------------------------------------

    /// `x Wᵀ + b`.
    ///
    /// # Errors
    /// When the widths differ.
    fn linear(&self, x: &Self::Tensor, weight: &Self::Matrix) -> Result<Self::Tensor>;

    /// [`Backend::linear`] for several weights that share an input.
    ///
    /// # Errors
    /// As [`Backend::linear`].
    fn linear_each<const N: usize>(&self, x: &Self::Tensor, weights: [&Self::Matrix; N]) -> Result<[Self::Tensor; N]>;

    /// `residual + (x Wᵀ + b)`.
    ///
    /// # Errors
    /// As [`Backend::linear`] and [`Backend::add`].
    fn linear_add(&self, x: &Self::Tensor, weight: &Self::Matrix, residual: Self::Tensor) -> Result<Self::Tensor> {
        let product = self.linear(x, weight)?;
        self.add(residual, &product)
    }

    /// `activation(x Wᵀ + b)`: the first half of a plain MLP.
    ///
    /// # Errors
    /// As [`Backend::linear`].
    fn linear_activated(
        &self,
        x: &Self::Tensor,
        weight: &Self::Matrix,
        activation: Activation,
    ) -> Result<Self::Tensor> {
        let product = self.linear(x, weight)?;
        self.activate(product, activation)
    }

    /// `activation(x)`.
    ///
    /// # Errors
    /// When the backend fails.
    fn activate(&self, x: Self::Tensor, activation: Activation) -> Result<Self::Tensor>;

    /// `activation(x Gᵀ) * (x Uᵀ)`: the first half of a gated MLP.
    ///
    /// # Errors
    /// As [`Backend::linear`].
    fn gated_linear(
        &self,
        x: &Self::Tensor,
        gate: &Self::Matrix,
        up: &Self::Matrix,
        activation: Activation,
    ) -> Result<Self::Tensor> {
        let [gate, up] = self.linear_each(x, [gate, up])?;
        self.gated(gate, &up, activation)
    }

    /// `activation(gate) * up`.
    ///
    /// # Errors
    /// When the shapes differ.
    fn gated(&self, gate: Self::Tensor, up: &Self::Tensor, activation: Activation) -> Result<Self::Tensor>;

    /// `a + b`.
    ///
    /// # Errors
    /// When the shapes differ.
    fn add(&self, a: Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;

    /// RMS norm over all features: `x / sqrt(mean(x²) + eps) * weight`.
    ///
    /// # Errors
    /// When the widths differ.
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Vector, epsilon: f32) -> Result<Self::Tensor>;

    /// Layer norm over all features: `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`.
    ///
    /// # Errors
    /// When the widths differ.
    fn layer_norm(
        &self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        bias: &Self::Vector,
        epsilon: f32,
    ) -> Result<Self::Tensor>;

    // --- Lines outside of any step -----------------------------------------------------------------------------------

    /// Lines of `columns` floats from the host, such as the frames of a spectrogram. They belong to no step: operations
    /// that take a step do not take them.
    ///
    /// # Errors
    /// When the columns do not divide the values.
    fn lines(&self, values: &[f32], columns: usize) -> Result<Self::Tensor>;

    /// A convolution over lines, which come in the type of its weight where a backend computes in that: `[lines, in]` to
    /// `[ceil(lines / stride), out]`.
    ///
    /// # Errors
    /// When the widths differ.
    fn convolve(&self, x: &Self::Tensor, convolution: &Self::Convolution) -> Result<Self::Tensor>;

    /// Attention in which every line sees all lines: `softmax(q kᵀ / sqrt(head_dim)) v` for each of `heads` heads, queries
    /// and keys multiplied with the root of the scale each ([`AttentionSpec::split_scale`]). All are
    /// `[lines, heads * head_dim]`.
    ///
    /// # Errors
    /// When the shapes differ or the heads do not divide the width.
    fn full_attention(
        &self,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        heads: usize,
    ) -> Result<Self::Tensor>;

    /// Prepares lines of keys and values, `[lines, heads * head_dim]`, for any number of steps that listen to them.
    ///
    /// # Errors
    /// As [`Backend::full_attention`].
    fn memory(&self, k: &Self::Tensor, v: &Self::Tensor, heads: usize) -> Result<Self::Memory>;

    // --- Attention ---------------------------------------------------------------------------------------------------

    /// Turns the heads of `x`, `[tokens, heads * head_dim]`, by their positions in the step.
    ///
    /// # Errors
    /// When the width is not a multiple of the head size.
    fn apply_rope(&self, x: Self::Tensor, rope: &Self::Rope, step: &Self::Step) -> Result<Self::Tensor>;

    /// Stores `k` and `v` for the step's tokens and attends, causally, over all that each sequence holds.
    /// `q` is `[tokens, heads * head_dim]`, `k` and `v` `[tokens, kv_heads * head_dim]`; the result is shaped as `q`.
    ///
    /// # Errors
    /// When shapes do not fit the layer.
    fn attention(
        &self,
        q: &Self::Tensor,
        k: &Self::Tensor,
        v: &Self::Tensor,
        spec: &AttentionSpec,
        step: &Self::Step,
        kv: &mut Self::Kv,
    ) -> Result<Self::Tensor>;

    /// Attention of each row's queries over all of a memory, one memory for each row of the step: scaled as
    /// [`Backend::full_attention`]. `q` and the result are `[tokens, heads * head_dim]`.
    ///
    /// # Errors
    /// When there is not one memory for each row, or shapes do not fit.
    fn cross_attention(&self, q: &Self::Tensor, memories: &[&Self::Memory], step: &Self::Step) -> Result<Self::Tensor>;

    /// What [`Backend::cross_attention`] takes the softmax of, for a step of one row and some of the heads, whose numbers
    /// rise: `[heads * tokens, lines of the memory]`, all tokens of the first head first.
    ///
    /// # Errors
    /// When the step has several rows, or shapes do not fit.
    fn cross_scores(&self, q: &Self::Tensor, memory: &Self::Memory, heads: &[usize]) -> Result<Self::Tensor>;

    // --- Results -----------------------------------------------------------------------------------------------------

    /// Whether [`Backend::choose`] works, and the next step can be prepared before this one's tokens were read.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Chooses a token from each line of logits, as tokens for a next step. A line that is no distribution, because of
    /// NaN or nothing finite, gives [`Backend::NO_TOKEN`].
    ///
    /// # Errors
    /// When the backend cannot choose, or there is not one draw for each line.
    fn choose(&self, logits: &Self::Tensor, draws: &[Draw]) -> Result<Self::Tokens>;

    /// What [`Backend::choose`] gives for a line that is no distribution.
    const NO_TOKEN: u32 = u32::MAX;

    /// Lets a lazy backend begin to compute what a step leaves: the tokens and logits named, or else the keys and values
    /// of its sequences. Must be called once for each step, after its results were asked for.
    ///
    /// # Errors
    /// When the backend fails.
    fn submit(
        &self,
        _step: &Self::Step,
        _kv: &mut Self::Kv,
        _tokens: Option<&Self::Tokens>,
        _logits: Option<&Self::Tensor>,
    ) -> Result<()> {
        Ok(())
    }

    /// Waits until a submitted step without results is through.
    ///
    /// # Errors
    /// When the backend fails.
    fn wait(&self, _step: &Self::Step, _kv: &mut Self::Kv) -> Result<()> {
        Ok(())
    }

    /// Waits for tokens.
    ///
    /// # Errors
    /// When the backend fails.
    fn read_tokens(&self, tokens: &Self::Tokens) -> Result<Vec<u32>>;

    /// Waits for a tensor and writes its lines, one after the other, to `out`.
    ///
    /// # Errors
    /// When the backend fails.
    fn read(&self, x: &Self::Tensor, out: &mut Vec<f32>) -> Result<()>;
}
