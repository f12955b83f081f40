//! The backend on linnet-kernels: computes at once, in f32, with keys and values in pages of f16 or
//! quantized.

mod convolution;
mod kv;
mod memory;
mod positions;
mod step;
mod tensor;

pub use convolution::CpuConvolution;
pub use kv::CpuKv;
pub use memory::CpuMemory;
pub use step::CpuStep;
pub use tensor::CpuTensor;

use crate::{
    Activation, AttentionSpec, Backend, ComputeError, ConvolutionSource, Draw, Dtype, KvLayout, KvQuantization,
    MatrixSource, Result, RopeSpec, Row, TensorView, Weight,
};
use linnet_kernels::{
    AffineWeight, AttentionOptions, AttentionRow, Context, DenseWeight, FloatSlice, Matrix, MatrixError, Precision,
    Product, RopeTable,
};
use std::{ops::Range, rc::Rc};
use tensor::Arena;

/// How the backend runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the engine's own included.
    pub threads: usize,
    /// Compute quantized products exactly, in f32, instead of with activations held to about 15 bits.
    pub exact: bool,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: physical_cores(), exact: false }
    }
}

/// How many cores this machine has, without the second threads that some have.
#[must_use]
pub fn physical_cores() -> usize {
    linnet_kernels::pool::physical_cores()
}

/// The instruction set that kernels use here, for people.
#[must_use]
pub fn instruction_set() -> String {
    format!("{:?}", linnet_kernels::Isa::detect())
}

/// The backend on this machine's cores.
#[derive(Debug)]
pub struct CpuBackend {
    context: Context,
    precision: Precision,
    arena: Arena,
    kv_quantization: Option<KvQuantization>,
}

/// A weight matrix, re-laid for the kernels.
#[derive(Debug)]
pub struct CpuMatrix {
    matrix: Matrix,
    bias: Option<Vec<f32>>,
}

/// A rotary embedding for heads of one size.
#[derive(Debug)]
pub struct CpuRope {
    spec: RopeSpec,
    table: RopeTable,
    head_dim: usize,
}

impl CpuBackend {
    /// A backend on the best instruction set of this machine.
    #[must_use]
    pub fn new(options: CpuOptions) -> Self {
        Self::with_context(Context::new(options.threads), options.exact)
    }

    /// A backend on a given context, as tests of one instruction set need.
    #[must_use]
    pub fn with_context(context: Context, exact: bool) -> Self {
        let precision = if exact { Precision::Exact } else { Precision::Fast };
        Self { context, precision, arena: Arena::default(), kv_quantization: None }
    }

    /// The same backend, whose stores quantize keys and values of layers without a window.
    #[must_use]
    pub fn with_kv_quantization(mut self, quantization: Option<KvQuantization>) -> Self {
        self.kv_quantization = quantization;
        self
    }

    /// The same backend, unless it is exact, with activations of quantized products held to 8 bits where there are many
    /// rows ([`Precision::OneTerm`]), and those of full attention too where that is faster: for models that bear it.
    #[must_use]
    pub fn with_coarse_activations(mut self) -> Self {
        if self.precision == Precision::Fast {
            self.precision = Precision::OneTerm;
        }
        self
    }

    fn product_outputs<const N: usize>(&self, x: &CpuTensor, weights: [&CpuMatrix; N]) -> Result<[CpuTensor; N]> {
        let mut outputs = weights.map(|weight| self.arena.tensor(x.rows(), weight.matrix.out_features()));
        let mut products = Vec::with_capacity(N);
        for (output, weight) in outputs.iter_mut().zip(weights) {
            products.push(Product::new(&weight.matrix, output.data_mut()).with_bias(weight.bias.as_deref()));
        }
        linnet_kernels::matmul(&self.context, self.precision, x.data(), x.rows(), &mut products)
            .map_err(|error| kernel("matmul", &error))?;
        Ok(outputs)
    }
}

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Matrix = CpuMatrix;
    type Vector = Vec<f32>;
    type Rope = CpuRope;
    type Step = CpuStep;
    type Kv = CpuKv;
    type Tokens = Rc<[u32]>;
    type Convolution = CpuConvolution;
    type Memory = CpuMemory;

    fn matrix(&self, source: &MatrixSource<'_>) -> Result<CpuMatrix> {
        source.validate()?;
        let (out_features, in_features) = (source.out_features, source.in_features);
        let matrix = match &source.weight {
            Weight::Dense(weight) => {
                let data = floats(weight)?;
                Matrix::from_dense(&self.context, DenseWeight { out_features, in_features, data })
            }
            Weight::Affine { quantization, packed, scales, biases } => {
                let weight = AffineWeight {
                    out_features,
                    in_features,
                    bits: quantization.bits,
                    group_size: quantization.group_size,
                    packed: packed.bytes,
                    scales: floats(scales)?,
                    biases: floats(biases)?,
                };
                Matrix::from_affine(&self.context, weight)
            }
        };
        let matrix = matrix.map_err(|error| kernel("matrix", &error))?;
        let bias = source.bias.as_ref().map(|bias| self.vector(bias)).transpose()?;
        Ok(CpuMatrix { matrix, bias })
    }

    fn vector(&self, source: &TensorView<'_>) -> Result<Vec<f32>> {
        let floats = floats(source)?;
        Ok((0..floats.len()).map(|index| floats.get(index)).collect())
    }

    fn rope(&self, spec: &RopeSpec, head_dim: usize) -> Result<CpuRope> {
        if spec.dims > head_dim || spec.dims == 0 || !spec.dims.is_multiple_of(2) {
            let detail = format!("{} of {head_dim} elements of a head cannot be rotated", spec.dims);
            return Err(ComputeError::Shape { operation: "rope", detail });
        }
        Ok(CpuRope { table: rope_table(spec, 0), spec: spec.clone(), head_dim })
    }

    fn convolution(&self, source: &ConvolutionSource<'_>) -> Result<CpuConvolution> {
        self.load_convolution(source)
    }

    fn sinusoids(&self, length: usize, channels: usize, dtype: Dtype) -> Result<CpuTensor> {
        self.make_sinusoids(length, channels, dtype)
    }

    fn kv(&self, layout: &KvLayout, capacity: usize) -> Result<CpuKv> {
        let kv = CpuKv::new(layout, capacity);
        match self.kv_quantization {
            None => Ok(kv),
            Some(quantization) => kv.quantized(layout, quantization),
        }
    }

    fn identity(&self) -> String {
        let (isa, version) = (self.context.isa(), env!("CARGO_PKG_VERSION"));
        format!("cpu {version} {isa:?} {:?}", self.precision)
    }

    fn tokens(&self, ids: &[u32]) -> Result<Rc<[u32]>> {
        Ok(ids.into())
    }

    fn join_tokens(&self, parts: &[(&Rc<[u32]>, Range<usize>)]) -> Result<Rc<[u32]>> {
        let part = |(tokens, range): &(&Rc<[u32]>, Range<usize>)| {
            let missing = || shape("join_tokens", format!("tokens {range:?} of {}", tokens.len()));
            Ok(tokens.get(range.clone()).ok_or_else(missing)?.to_vec())
        };
        Ok(parts.iter().map(part).collect::<Result<Vec<_>>>()?.concat().into())
    }

    fn step(&self, kv: &mut CpuKv, rows: &[Row], tokens: &Rc<[u32]>) -> Result<CpuStep> {
        let step = CpuStep::new(rows, tokens)?;
        kv.extend(rows)?;
        Ok(step)
    }

    fn embed(&self, table: &CpuMatrix, step: &CpuStep) -> Result<CpuTensor> {
        let vocabulary = table.matrix.out_features();
        let columns = table.matrix.in_features();
        let mut out = self.arena.tensor(step.tokens().len(), columns);
        for (&token, line) in step.tokens().iter().zip(out.data_mut().chunks_exact_mut(columns)) {
            let row = token as usize;
            if row >= vocabulary {
                return Err(ComputeError::TokenOutOfRange { token, vocabulary });
            }
            table.matrix.dequantize_row(row, line);
        }
        Ok(out)
    }

    fn embed_positions(&self, table: &CpuMatrix, step: &CpuStep) -> Result<CpuTensor> {
        self.positions_of(table, step)
    }

    fn outputs(&self, x: &CpuTensor, step: &CpuStep) -> Result<CpuTensor> {
        if x.rows() != step.tokens().len() {
            return Err(shape("outputs", format!("{} lines for {} tokens", x.rows(), step.tokens().len())));
        }
        if step.outputs().len() == x.rows() {
            return Ok(x.clone());
        }
        let columns = x.columns();
        let mut out = self.arena.tensor(step.outputs().len(), columns);
        for (&line, to) in step.outputs().iter().zip(out.data_mut().chunks_exact_mut(columns)) {
            to.copy_from_slice(&x.data()[line * columns..(line + 1) * columns]);
        }
        Ok(out)
    }

    fn linear(&self, x: &CpuTensor, weight: &CpuMatrix) -> Result<CpuTensor> {
        let [out] = self.product_outputs(x, [weight])?;
        Ok(out)
    }

    fn linear_each<const N: usize>(&self, x: &CpuTensor, weights: [&CpuMatrix; N]) -> Result<[CpuTensor; N]> {
        self.product_outputs(x, weights)
    }

    fn linear_add(&self, x: &CpuTensor, weight: &CpuMatrix, residual: CpuTensor) -> Result<CpuTensor> {
        let mut out = residual;
        if (out.rows(), out.columns()) != (x.rows(), weight.matrix.out_features()) {
            let detail = format!(
                "[{}, {}] added to a product of [{}, {}]",
                out.rows(),
                out.columns(),
                x.rows(),
                weight.matrix.out_features()
            );
            return Err(shape("linear_add", detail));
        }
        let product = Product::new(&weight.matrix, out.data_mut()).with_bias(weight.bias.as_deref()).accumulate();
        linnet_kernels::matmul(&self.context, self.precision, x.data(), x.rows(), &mut [product])
            .map_err(|error| kernel("matmul", &error))?;
        Ok(out)
    }

    fn linear_activated(&self, x: &CpuTensor, weight: &CpuMatrix, activation: Activation) -> Result<CpuTensor> {
        let mut out = self.arena.tensor(x.rows(), weight.matrix.out_features());
        let product = Product::new(&weight.matrix, out.data_mut())
            .with_bias(weight.bias.as_deref())
            .with_activation(kernel_activation(activation));
        linnet_kernels::matmul(&self.context, self.precision, x.data(), x.rows(), &mut [product])
            .map_err(|error| kernel("matmul", &error))?;
        Ok(out)
    }

    fn activate(&self, x: CpuTensor, activation: Activation) -> Result<CpuTensor> {
        let mut out = x;
        linnet_kernels::activate_in_place(&self.context, kernel_activation(activation), out.data_mut());
        Ok(out)
    }

    fn gated_linear(
        &self,
        x: &CpuTensor,
        gate: &CpuMatrix,
        up: &CpuMatrix,
        activation: Activation,
    ) -> Result<CpuTensor> {
        if gate.bias.is_some() || up.bias.is_some() {
            let [gate, up] = self.linear_each(x, [gate, up])?;
            return self.gated(gate, &up, activation);
        }
        let mut out = self.arena.tensor(x.rows(), gate.matrix.out_features());
        linnet_kernels::matmul_gated(
            &self.context,
            self.precision,
            x.data(),
            x.rows(),
            &gate.matrix,
            &up.matrix,
            kernel_activation(activation),
            out.data_mut(),
        )
        .map_err(|error| kernel("gated matmul", &error))?;
        Ok(out)
    }

    fn gated(&self, gate: CpuTensor, up: &CpuTensor, activation: Activation) -> Result<CpuTensor> {
        same_shape("gated", &gate, up)?;
        let mut out = gate;
        linnet_kernels::gated(&self.context, kernel_activation(activation), out.data_mut(), up.data());
        Ok(out)
    }

    fn add(&self, a: CpuTensor, b: &CpuTensor) -> Result<CpuTensor> {
        same_shape("add", &a, b)?;
        let mut out = a;
        linnet_kernels::add_in_place(&self.context, out.data_mut(), b.data());
        Ok(out)
    }

    fn rms_norm(&self, x: &CpuTensor, weight: &Vec<f32>, epsilon: f32) -> Result<CpuTensor> {
        if weight.len() != x.columns() {
            return Err(shape("rms_norm", format!("{} weights for {} features", weight.len(), x.columns())));
        }
        let mut out = self.arena.tensor(x.rows(), x.columns());
        linnet_kernels::rms_norm(&self.context, x.data(), x.columns(), Some(weight), epsilon, out.data_mut());
        Ok(out)
    }

    fn layer_norm(&self, x: &CpuTensor, weight: &Vec<f32>, bias: &Vec<f32>, epsilon: f32) -> Result<CpuTensor> {
        if weight.len() != x.columns() || bias.len() != x.columns() {
            let detail = format!("{} weights and {} biases for {} features", weight.len(), bias.len(), x.columns());
            return Err(shape("layer_norm", detail));
        }
        let mut out = self.arena.tensor(x.rows(), x.columns());
        let (columns, weight, bias) = (x.columns(), Some(weight.as_slice()), Some(bias.as_slice()));
        linnet_kernels::layer_norm(&self.context, x.data(), columns, weight, bias, epsilon, out.data_mut());
        Ok(out)
    }

    fn lines(&self, values: &[f32], columns: usize) -> Result<CpuTensor> {
        if columns == 0 || !values.len().is_multiple_of(columns) {
            return Err(shape("lines", format!("{} values in lines of {columns}", values.len())));
        }
        let mut out = self.arena.tensor(values.len() / columns, columns);
        out.data_mut().copy_from_slice(values);
        Ok(out)
    }

    fn convolve(&self, x: &CpuTensor, convolution: &CpuConvolution) -> Result<CpuTensor> {
        self.run_convolution(x, convolution)
    }

    fn full_attention(&self, q: &CpuTensor, k: &CpuTensor, v: &CpuTensor, heads: usize) -> Result<CpuTensor> {
        self.attend_all(q, k, v, heads)
    }

    fn memory(&self, k: &CpuTensor, v: &CpuTensor, heads: usize) -> Result<CpuMemory> {
        self.keep(k, v, heads)
    }

    fn apply_rope(&self, x: CpuTensor, rope: &CpuRope, step: &CpuStep) -> Result<CpuTensor> {
        if x.rows() != step.tokens().len() || !x.columns().is_multiple_of(rope.head_dim) {
            let detail = format!("[{}, {}] with heads of {}", x.rows(), x.columns(), rope.head_dim);
            return Err(shape("rope", detail));
        }
        let mut out = x;
        let columns = out.columns();
        let heads = columns / rope.head_dim;
        if !rope.spec.depends_on_length() {
            let data = out.data_mut();
            linnet_kernels::rope(&self.context, data, heads, rope.head_dim, step.positions(), &rope.table);
            return Ok(out);
        }
        for (row, first) in step.rows() {
            let table = rope_table(&rope.spec, row.start + row.length);
            let positions = &step.positions()[first..first + row.length];
            let lines = &mut out.data_mut()[first * columns..(first + row.length) * columns];
            linnet_kernels::rope(&self.context, lines, heads, rope.head_dim, positions, &table);
        }
        Ok(out)
    }

    fn attention(
        &self,
        q: &CpuTensor,
        k: &CpuTensor,
        v: &CpuTensor,
        spec: &AttentionSpec,
        step: &CpuStep,
        kv: &mut CpuKv,
    ) -> Result<CpuTensor> {
        let place = kv.layer(spec.layer)?;
        let geometry = place.geometry;
        let (width, kv_width) = (spec.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim);
        let tokens = step.tokens().len();
        for (tensor, columns) in [(q, width), (k, kv_width), (v, kv_width)] {
            if (tensor.rows(), tensor.columns()) != (tokens, columns) {
                let detail = format!("[{}, {}] instead of [{tokens}, {columns}]", tensor.rows(), tensor.columns());
                return Err(shape("attention", detail));
            }
        }
        for (row, first) in step.rows() {
            let range = first * kv_width..(first + row.length) * kv_width;
            kv.write(place, row, &k.data()[range.clone()], &v.data()[range])?;
        }
        let pages = step.rows().map(|(row, _)| kv.pages(place, row.slot)).collect::<Result<Vec<_>>>()?;
        let mut out = self.arena.tensor(tokens, width);
        let mut rest = out.data_mut();
        let mut attention_rows = Vec::with_capacity(pages.len());
        for ((row, first), pages) in step.rows().zip(&pages) {
            let (output, tail) = rest.split_at_mut(row.length * width);
            rest = tail;
            let query = &q.data()[first * width..(first + row.length) * width];
            attention_rows.push(AttentionRow {
                query,
                output,
                start: row.start,
                length: row.length,
                pages,
                first_position: 0,
            });
        }
        let options = AttentionOptions {
            heads: spec.heads,
            geometry,
            scale: spec.scale,
            window: spec.window,
            softcap: spec.softcap,
            sinks: None,
        };
        linnet_kernels::attention(&self.context, &options, &mut attention_rows)
            .map_err(|error| ComputeError::Kernel { operation: "attention", reason: error.to_string() })?;
        Ok(out)
    }

    fn cross_attention(&self, q: &CpuTensor, memories: &[&CpuMemory], step: &CpuStep) -> Result<CpuTensor> {
        self.attend_memories(q, memories, step)
    }

    fn cross_scores(&self, q: &CpuTensor, memory: &CpuMemory, heads: &[usize]) -> Result<CpuTensor> {
        self.memory_scores(q, memory, heads)
    }

    fn submit(
        &self,
        step: &CpuStep,
        kv: &mut CpuKv,
        _tokens: Option<&Rc<[u32]>>,
        _logits: Option<&CpuTensor>,
    ) -> Result<()> {
        kv.settle(step.rows().map(|(row, _)| row.slot));
        Ok(())
    }

    fn choose(&self, logits: &CpuTensor, draws: &[Draw]) -> Result<Rc<[u32]>> {
        if draws.len() != logits.rows() {
            return Err(shape("choose", format!("{} draws for {} lines", draws.len(), logits.rows())));
        }
        let choose = |(line, draw): (&[f32], &Draw)| match draw {
            Draw::Greedy if line.iter().any(|logit| logit.is_nan()) => Ok(Self::NO_TOKEN),
            Draw::Greedy => Ok(u32::try_from(linnet_kernels::argmax(line)).unwrap_or(Self::NO_TOKEN)),
            // The sampler of the runtime does this on the same cores, and more.
            Draw::Random { .. } => {
                Err(ComputeError::Unsupported { backend: "cpu", what: "draw random tokens by itself" })
            }
        };
        logits.data().chunks_exact(logits.columns().max(1)).zip(draws).map(choose).collect()
    }

    fn read_tokens(&self, tokens: &Rc<[u32]>) -> Result<Vec<u32>> {
        Ok(tokens.to_vec())
    }

    fn read(&self, x: &CpuTensor, out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        out.extend_from_slice(x.data());
        Ok(())
    }
}

/// The table of a sequence of `length` tokens.
fn rope_table(spec: &RopeSpec, length: usize) -> RopeTable {
    let inverse = spec.frequencies(length).into_iter().map(|frequency| (1.0 / frequency) as f32).collect();
    RopeTable::new(inverse, spec.traditional, spec.input_scale() as f32)
}

fn floats<'a>(tensor: &TensorView<'a>) -> Result<FloatSlice<'a>> {
    match tensor.dtype {
        Dtype::F32 => Ok(FloatSlice::F32(tensor.bytes)),
        Dtype::F16 => Ok(FloatSlice::F16(tensor.bytes)),
        Dtype::BF16 => Ok(FloatSlice::BF16(tensor.bytes)),
        Dtype::U32 => Err(ComputeError::WrongDtype {
            name: tensor.name.to_owned(),
            found: tensor.dtype.to_string(),
            expected: "float32, float16 or bfloat16",
        }),
    }
}

fn kernel_activation(activation: Activation) -> linnet_kernels::Activation {
    match activation {
        Activation::Silu => linnet_kernels::Activation::Silu,
        Activation::GeluTanh => linnet_kernels::Activation::GeluTanh,
        Activation::Gelu => linnet_kernels::Activation::Gelu,
    }
}

fn kernel(operation: &'static str, error: &MatrixError) -> ComputeError {
    ComputeError::Kernel { operation, reason: error.to_string() }
}

fn shape(operation: &'static str, detail: String) -> ComputeError {
    ComputeError::Shape { operation, detail }
}

fn same_shape(operation: &'static str, a: &CpuTensor, b: &CpuTensor) -> Result<()> {
    if (a.rows(), a.columns()) == (b.rows(), b.columns()) {
        return Ok(());
    }
    Err(shape(operation, format!("[{}, {}] and [{}, {}]", a.rows(), a.columns(), b.rows(), b.columns())))
}
