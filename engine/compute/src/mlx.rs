//! The backend on Apple's MLX: builds its lazy graph operation for operation as mlx-lm 0.32.2 does, so that on the same
//! build of MLX the logits have the same bits.
//!
//! A [`MlxStep`] is one or more batches of rows (see [`MlxKv`]); a tensor has one array for each. What is fused beyond
//! mlx-lm is fused only where it changes no bit: products that share an input, rope over query and key heads at once.

mod activation;
mod attention;
mod failure;
mod graph;
mod kv;
mod lines;
mod listening;
mod mask;
mod memory;
mod metal_kernels;
mod pace;
mod rope;
mod sampler;
mod step;
mod tensor;
mod tokens;
mod weight;

pub use kv::MlxKv;
pub use lines::MlxConvolution;
pub use listening::MlxMemory;
#[cfg(feature = "kernel-tests")]
pub use metal_kernels::{KernelArray, run_kernel};
pub use rope::MlxRope;
pub use step::MlxStep;
pub use tensor::MlxTensor;
pub use tokens::MlxTokens;
pub use weight::MlxMatrix;

use crate::{
    Activation, AttentionSpec, Backend, ComputeError, ConvolutionSource, Draw, Dtype, KvLayout, KvQuantization,
    LayerKv, MatrixSource, Result, RopeSpec, Row, TensorView,
};
use activation::Activations;
use failure::Failure;
use graph::{Graph, data};
use memory::Memory;
use mlx_rs::Array;
use pace::Pace;
use std::{collections::HashMap, ops::Range, rc::Rc};
use step::{Group, Wanted};
use tensor::{Part, Parts};
use tokens::Id;

/// Memory left free for activations when the size of a KV store is derived from what is there.
const WORKING_MEMORY: usize = 512 << 20;

/// How the backend runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MlxOptions {
    /// Whether and how keys and values are quantized.
    pub kv_quantization: Option<KvQuantization>,
    /// Runs a sequence that is alone as a batch of one, as mlx-lm's `BatchGenerator` does. Slower; for comparisons with
    /// it on devices whose kernels differ between the two.
    pub always_padded: bool,
    /// Composes every operation as mlx-lm does, even where there is a fused kernel of our own for the device. For
    /// comparisons to the bit.
    pub composed: bool,
}

/// The backend on MLX's default device. Lives on the thread that made it.
pub struct MlxBackend {
    graph: Rc<Graph>,
    memory: Rc<Memory>,
    activations: Activations,
    pace: Pace,
    options: MlxOptions,
}

impl MlxBackend {
    /// A backend on the GPU where MLX has one, else on the cores. Sets MLX's memory limits for this process.
    ///
    /// # Errors
    /// When MLX has no usable device.
    pub fn new(options: MlxOptions) -> Result<Self> {
        let graph = if options.composed { Graph::new()? } else { Graph::new()?.with_kernels() };
        let memory = Memory::new(&graph)?;
        let activations = Activations::new()?;
        Ok(Self { graph: Rc::new(graph), memory: Rc::new(memory), activations, pace: Pace::default(), options })
    }

    /// Whether it computes on a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.graph.is_gpu()
    }

    /// One element that is known when `array` is. Holding on to it, unlike the array, leaves the next step free to write
    /// to the array in place.
    fn marker(&self, array: &Array) -> graph::Result<Array> {
        let mut first = array.clone();
        for axis in 0..array.ndim() {
            first = self.graph.slice(&first, axis, 0, 1)?;
        }
        self.graph.is_finite(&first)
    }

    /// All lines of logits as `[lines, vocabulary]`, and each line's number in the step, part by part.
    fn logit_lines(&self, logits: &MlxTensor) -> graph::Result<Vec<(Array, Vec<usize>)>> {
        let parts = logits.parts();
        let mut first = 0;
        let mut lines = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let flat = part.to_flat(&self.graph)?;
            let (rows, length, features) = (flat.dim(0), flat.dim(1), flat.dim(2));
            let count = rows * length;
            let numbers = match &logits.lines {
                Some(lines) => lines[number].clone(),
                None => (first..first + count as usize).collect(),
            };
            first += count as usize;
            lines.push((self.graph.reshape(&flat, &[count, features])?, numbers));
        }
        Ok(lines)
    }
}

impl Backend for MlxBackend {
    type Tensor = MlxTensor;
    type Matrix = MlxMatrix;
    type Vector = Array;
    type Rope = MlxRope;
    type Step = MlxStep;
    type Kv = MlxKv;
    type Tokens = MlxTokens;
    type Convolution = MlxConvolution;
    type Memory = MlxMemory;

    const NO_TOKEN: u32 = sampler::NO_TOKEN;

    fn identity(&self) -> String {
        let device = if self.graph.is_gpu() { "gpu" } else { "cpu" };
        let kernels = if self.graph.kernels().is_some() { " with own kernels" } else { "" };
        format!("mlx {} {device} {}{kernels}", graph::data::version(), std::env::consts::ARCH)
    }

    fn matrix(&self, source: &MatrixSource<'_>) -> Result<MlxMatrix> {
        source.validate()?;
        Ok(MlxMatrix::load(&self.graph, source)?)
    }

    fn admit_weights(&self, bytes: usize) -> Result<()> {
        self.pace.weigh(bytes);
        self.memory.admit("the model's weights", bytes)
    }

    fn vector(&self, source: &TensorView<'_>) -> Result<Array> {
        if !source.dtype.is_float() || source.shape.len() != 1 {
            return Err(ComputeError::WrongDtype {
                name: source.name.to_owned(),
                found: format!("{} of shape {:?}", source.dtype, source.shape),
                expected: "a vector of floats",
            });
        }
        // Norms have the type that activations will have.
        self.memory.note_element(source.dtype.size());
        Ok(weight::load(source)?)
    }

    fn rope(&self, spec: &RopeSpec, head_dim: usize) -> Result<MlxRope> {
        if spec.dims > head_dim || spec.dims == 0 || !spec.dims.is_multiple_of(2) {
            let detail = format!("{} of {head_dim} elements of a head cannot be rotated", spec.dims);
            return Err(ComputeError::Shape { operation: "rope", detail });
        }
        Ok(MlxRope::new(&self.graph, spec, head_dim)?)
    }

    fn convolution(&self, source: &ConvolutionSource<'_>) -> Result<MlxConvolution> {
        MlxConvolution::load(source)
    }

    fn sinusoids(&self, length: usize, channels: usize, dtype: Dtype) -> Result<MlxTensor> {
        self.make_sinusoids(length, channels, dtype)
    }

    fn kv_room(&self, layout: &KvLayout) -> Result<Option<usize>> {
        let store = MlxKv::new(Rc::clone(&self.graph), Rc::clone(&self.memory), layout, &self.options, 0)?;
        let bytes = store.bytes_per_token().max(1);
        // A step that runs ahead may hold the arrays of the one before beside its own.
        let room = self.memory.free()?.saturating_sub(WORKING_MEMORY) / 2 / bytes;
        if room < kv::GROWTH {
            self.memory.admit("the KV cache of one short conversation", WORKING_MEMORY + 2 * kv::GROWTH * bytes)?;
        }
        Ok(Some(room))
    }

    fn kv(&self, layout: &KvLayout, capacity: usize) -> Result<MlxKv> {
        if let Some(LayerKv { kv_heads, head_dim, window }) =
            layout.layers.iter().find(|layer| layer.kv_heads == 0 || layer.head_dim == 0 || layer.window == Some(0))
        {
            let detail = format!("a layer of {kv_heads} heads of {head_dim} with a window of {window:?}");
            return Err(ComputeError::Shape { operation: "kv", detail });
        }
        let store = MlxKv::new(Rc::clone(&self.graph), Rc::clone(&self.memory), layout, &self.options, capacity)?;
        self.memory.admit("a KV cache of this many tokens", capacity.saturating_mul(store.bytes_per_token()))?;
        Ok(store)
    }

    fn tokens(&self, ids: &[u32]) -> Result<MlxTokens> {
        Ok(MlxTokens::host(ids))
    }

    fn join_tokens(&self, parts: &[(&MlxTokens, Range<usize>)]) -> Result<MlxTokens> {
        MlxTokens::join(parts).ok_or_else(|| {
            let ranges: Vec<_> = parts.iter().map(|(tokens, range)| (tokens.ids().len(), range)).collect();
            ComputeError::Shape { operation: "join_tokens", detail: format!("(tokens, range): {ranges:?}") }
        })
    }

    fn step(&self, kv: &mut MlxKv, rows: &[Row], tokens: &MlxTokens) -> Result<MlxStep> {
        Row::check_all(rows, tokens.ids().len())?;
        let (plans, begun) = kv.begin(rows)?;
        MlxStep::new(&self.graph, plans, rows, tokens).map_err(|failure| {
            kv.undo(begun);
            failure.into()
        })
    }

    fn embed(&self, table: &MlxMatrix, step: &MlxStep) -> Result<MlxTensor> {
        let mut parts = Vec::with_capacity(step.groups.len());
        for group in &step.groups {
            if let Some(token) = group.greatest_id.filter(|&token| token as usize >= table.out_features) {
                return Err(ComputeError::TokenOutOfRange { token, vocabulary: table.out_features });
            }
            parts.push(Part::flat(table.embed(&self.graph, &group.ids)?));
        }
        Ok(MlxTensor::new(parts, None))
    }

    fn embed_positions(&self, table: &MlxMatrix, step: &MlxStep) -> Result<MlxTensor> {
        let mut parts = Vec::with_capacity(step.groups.len());
        for group in &step.groups {
            let plan = &group.plan;
            if let Some(last) = group.last_position.filter(|&last| last >= table.out_features) {
                let detail = format!("position {last} of a table of {}", table.out_features);
                return Err(ComputeError::Shape { operation: "embed_positions", detail });
            }
            // Padding, whose positions mean nothing, may lie beyond the table.
            let position = |start: usize, place: usize| (start + place).min(table.out_features - 1) as u32;
            let places = plan.positions.iter().flat_map(|&start| (0..plan.length).map(move |place| (start, place)));
            let ids: Vec<u32> = places.map(|(start, place)| position(start, place)).collect();
            let ids = data::from_u32(&ids, &[plan.positions.len() as i32, plan.length as i32])?;
            parts.push(Part::flat(table.embed(&self.graph, &ids)?));
        }
        Ok(MlxTensor::new(parts, None))
    }

    fn outputs(&self, x: &MlxTensor, step: &MlxStep) -> Result<MlxTensor> {
        if let (Parts::One(_), [group]) = (&x.parts, step.groups.as_slice())
            && group.wanted == Wanted::All
        {
            return Ok(MlxTensor { lines: Some(Rc::clone(&step.lines)), ..x.clone() });
        }
        let mut lines = Vec::new();
        let mut parts = Vec::new();
        for ((part, group), numbers) in x.parts().iter().zip(&step.groups).zip(&*step.lines) {
            let part = match &group.wanted {
                Wanted::None => continue,
                Wanted::All => part.clone(),
                Wanted::Some(places) => {
                    let flat = part.to_flat(&self.graph)?;
                    let features = flat.dim(2);
                    let all = self.graph.reshape(&flat, &[flat.dim(0) * flat.dim(1), features])?;
                    let count = places.len() as i32;
                    let places = data::from_u32(places, &[count])?;
                    let chosen = self.graph.take(&all, &places, 0)?;
                    Part::flat(self.graph.reshape(&chosen, &[1, count, features])?)
                }
            };
            parts.push(part);
            lines.push(numbers.clone());
        }
        Ok(MlxTensor::new(parts, Some(lines.into())))
    }

    fn linear(&self, x: &MlxTensor, weight: &MlxMatrix) -> Result<MlxTensor> {
        check_width("linear", x, weight)?;
        Ok(x.map_flat(&self.graph, |x| weight.apply(&self.graph, x))?)
    }

    fn linear_each<const N: usize>(&self, x: &MlxTensor, weights: [&MlxMatrix; N]) -> Result<[MlxTensor; N]> {
        let mut products = Vec::with_capacity(N);
        for weight in weights {
            products.push(self.linear(x, weight)?);
        }
        products
            .try_into()
            .map_err(|_| ComputeError::Shape { operation: "linear", detail: "a product went missing".into() })
    }

    fn activate(&self, x: MlxTensor, activation: Activation) -> Result<MlxTensor> {
        Ok(x.map_flat(&self.graph, |x| self.activations.plain(activation, x))?)
    }

    fn gated_linear(
        &self,
        x: &MlxTensor,
        gate: &MlxMatrix,
        up: &MlxMatrix,
        activation: Activation,
    ) -> Result<MlxTensor> {
        if let (Some(kernels), Some(operands)) = (self.graph.kernels(), gate.gated_with(up)) {
            check_width("linear", x, gate)?;
            let fused = |part: &Part| kernels.gated(&self.graph, &*part.to_flat(&self.graph)?, &operands, activation);
            let parts: Vec<Option<Array>> = x.parts().iter().map(fused).collect::<graph::Result<_>>()?;
            // All parts or none: a step's parts are computed alike.
            if let Some(parts) = parts.into_iter().map(|part| part.map(Part::flat)).collect::<Option<Vec<_>>>() {
                return Ok(MlxTensor::new(parts, x.lines.clone()));
            }
        }
        let [gate, up] = self.linear_each(x, [gate, up])?;
        self.gated(gate, &up, activation)
    }

    fn gated(&self, gate: MlxTensor, up: &MlxTensor, activation: Activation) -> Result<MlxTensor> {
        Ok(gate.zip_flat(up, &self.graph, |gate, up| self.activations.gated(activation, gate, up))?)
    }

    fn add(&self, a: MlxTensor, b: &MlxTensor) -> Result<MlxTensor> {
        Ok(a.zip_flat(b, &self.graph, |a, b| self.graph.add(a, b))?)
    }

    fn rms_norm(&self, x: &MlxTensor, weight: &Array, epsilon: f32) -> Result<MlxTensor> {
        Ok(x.map_flat(&self.graph, |x| self.graph.rms_norm(x, weight, epsilon))?)
    }

    fn layer_norm(&self, x: &MlxTensor, weight: &Array, bias: &Array, epsilon: f32) -> Result<MlxTensor> {
        Ok(x.map_flat(&self.graph, |x| self.graph.layer_norm(x, weight, bias, epsilon))?)
    }

    fn lines(&self, values: &[f32], columns: usize) -> Result<MlxTensor> {
        Self::host_lines(values, columns)
    }

    fn convolve(&self, x: &MlxTensor, convolution: &MlxConvolution) -> Result<MlxTensor> {
        self.run_convolution(x, convolution)
    }

    fn full_attention(&self, q: &MlxTensor, k: &MlxTensor, v: &MlxTensor, heads: usize) -> Result<MlxTensor> {
        self.attend_all(q, k, v, heads)
    }

    fn memory(&self, k: &MlxTensor, v: &MlxTensor, heads: usize) -> Result<MlxMemory> {
        MlxMemory::new(&self.graph, k, v, heads)
    }

    fn apply_rope(&self, x: MlxTensor, rope: &MlxRope, step: &MlxStep) -> Result<MlxTensor> {
        each_group("rope", &x, step, |part, group| {
            let heads = part.to_heads(&self.graph, rope.head_dim)?;
            let plan = &group.plan;
            let turned = rope.apply(&self.graph, &heads, &plan.offset, &plan.positions)?;
            Ok(Part::Heads(Rc::new(turned)))
        })
    }

    fn attention(
        &self,
        q: &MlxTensor,
        k: &MlxTensor,
        v: &MlxTensor,
        spec: &AttentionSpec,
        step: &MlxStep,
        kv: &mut MlxKv,
    ) -> Result<MlxTensor> {
        let layer = kv.layer(spec.layer)?;
        let (width, kv_width) = (spec.heads * layer.head_dim, layer.kv_heads * layer.head_dim);
        let mut parts = Vec::with_capacity(step.groups.len());
        for (tensor, columns) in [(q, width), (k, kv_width), (v, kv_width)] {
            let fits = tensor.parts().len() == step.groups.len()
                && tensor.parts().iter().all(|part| part.features() == columns);
            if !fits || spec.window != layer.window {
                let found: Vec<usize> = tensor.parts().iter().map(Part::features).collect();
                let detail = format!(
                    "{found:?} features in {} batches instead of {columns} in {}, window {:?} for a store with {:?}",
                    found.len(),
                    step.groups.len(),
                    spec.window,
                    layer.window
                );
                return Err(ComputeError::Shape { operation: "attention", detail });
            }
        }
        let graph = &*self.graph;
        for (((q, k), v), group) in q.parts().iter().zip(k.parts()).zip(v.parts()).zip(&step.groups) {
            let k = k.to_heads(graph, layer.head_dim)?;
            let v = v.to_heads(graph, layer.head_dim)?;
            let (keys, values) = kv.write(&group.plan, spec.layer, &k, &v)?;
            let mask = group.plan.mask(layer.window_number);
            let attended = if spec.split_scale {
                let (keys, values) = (keys.floats(graph, kv.packing())?, values.floats(graph, kv.packing())?);
                Rc::new(listening::attend_split(graph, &*q.to_flat(graph)?, &keys, &values, mask)?)
            } else {
                let q = q.to_heads(graph, layer.head_dim)?;
                let packing = kv.packing();
                Rc::new(attention::attend(graph, &q, &keys, &values, spec, &group.plan, mask, packing)?)
            };
            // Only steps that decode and nothing else come so close upon one another.
            if group.wanted == Wanted::All && step.groups.len() == 1 && self.pace.ends_piece(spec.layer, kv.layers()) {
                step.piece_ends.borrow_mut().push((*attended).clone());
            }
            parts.push(if spec.split_scale { Part::Flat(attended) } else { Part::Heads(attended) });
        }
        Ok(MlxTensor::new(parts, None))
    }

    fn cross_attention(&self, q: &MlxTensor, memories: &[&MlxMemory], step: &MlxStep) -> Result<MlxTensor> {
        self.attend_memories(q, memories, step)
    }

    fn cross_scores(&self, q: &MlxTensor, memory: &MlxMemory, heads: &[usize]) -> Result<MlxTensor> {
        self.memory_scores(q, memory, heads)
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn choose(&self, logits: &MlxTensor, draws: &[Draw]) -> Result<MlxTokens> {
        let lines = self.logit_lines(logits)?;
        let count: usize = lines.iter().map(|(_, numbers)| numbers.len()).sum();
        if count != draws.len() {
            let detail = format!("{} draws for {count} lines", draws.len());
            return Err(ComputeError::Shape { operation: "choose", detail });
        }
        let mut chosen: HashMap<usize, Id> = HashMap::with_capacity(count);
        for (logits, numbers) in lines {
            let draws: Vec<&Draw> = numbers.iter().filter_map(|&number| draws.get(number)).collect();
            chosen.extend(numbers.into_iter().zip(sampler::choose(&self.graph, &logits, &draws)?));
        }
        Ok(MlxTokens::new((0..count).filter_map(|number| chosen.remove(&number)).collect()))
    }

    fn submit(
        &self,
        step: &MlxStep,
        kv: &mut MlxKv,
        tokens: Option<&MlxTokens>,
        logits: Option<&MlxTensor>,
    ) -> Result<()> {
        let mut arrays: Vec<Rc<Array>> = Vec::new();
        if let Some(tokens) = tokens {
            arrays.extend(tokens.arrays().into_iter().cloned());
        }
        if let Some(logits) = logits {
            for part in logits.parts() {
                arrays.push(part.to_flat(&self.graph)?);
            }
        }
        for group in &step.groups {
            // What has results needs its keys and values for them anyway.
            if group.wanted == Wanted::None {
                let held = kv.settle(group.plan.batch)?;
                if let Some(last) = held.last() {
                    *step.marker.borrow_mut() = Some(self.marker(last)?);
                }
                arrays.extend(held.into_iter().map(Rc::new));
            }
        }
        let marker = step.marker.borrow();
        let arrays: Vec<&Array> = arrays.iter().map(|array| &**array).chain(marker.as_ref()).collect();
        Ok(self.pace.submit(step.piece_ends.take(), &arrays)?)
    }

    fn wait(&self, step: &MlxStep, _kv: &mut MlxKv) -> Result<()> {
        match &*step.marker.borrow() {
            Some(marker) => Ok(data::eval(&[marker])?),
            None => Ok(()),
        }
    }

    fn read_tokens(&self, tokens: &MlxTokens) -> Result<Vec<u32>> {
        let mut read: Vec<(Rc<Array>, Vec<u32>)> = Vec::new();
        for array in tokens.arrays() {
            read.push((Rc::clone(array), self.graph.read_u32(array)?));
        }
        let id = |id: &Id| match id {
            Id::Host(id) => *id,
            Id::Device(array, index) => read
                .iter()
                .find(|(known, _)| Rc::ptr_eq(known, array))
                .and_then(|(_, ids)| ids.get(*index).copied())
                .unwrap_or(Self::NO_TOKEN),
        };
        Ok(tokens.ids().iter().map(id).collect())
    }

    fn read(&self, x: &MlxTensor, out: &mut Vec<f32>) -> Result<()> {
        out.clear();
        let mut lines = self.logit_lines(x)?;
        if let [(array, numbers)] = lines.as_slice()
            && numbers.is_sorted()
        {
            return Ok(self.graph.read_f32(array, out)?);
        }
        let mut read: Vec<(usize, Vec<f32>)> = Vec::new();
        for (array, numbers) in lines.drain(..) {
            let mut values = Vec::new();
            self.graph.read_f32(&array, &mut values)?;
            let features = array.dim(1).max(1) as usize;
            read.extend(numbers.into_iter().zip(values.chunks_exact(features).map(<[f32]>::to_vec)));
        }
        read.sort_by_key(|(number, _)| *number);
        for (_, values) in read {
            out.extend(values);
        }
        Ok(())
    }
}

/// Applies an operation to each batch of a step and its part of a tensor.
fn each_group(
    operation: &'static str,
    x: &MlxTensor,
    step: &MlxStep,
    apply: impl Fn(&Part, &Group) -> graph::Result<Part>,
) -> Result<MlxTensor> {
    let parts = x.parts();
    if parts.len() != step.groups.len() || x.lines.is_some() {
        let detail = format!("{} batches for a step of {}", parts.len(), step.groups.len());
        return Err(ComputeError::Shape { operation, detail });
    }
    let parts: Vec<Part> =
        parts.iter().zip(&step.groups).map(|(part, group)| apply(part, group)).collect::<graph::Result<_>>()?;
    Ok(MlxTensor::new(parts, None))
}

fn check_width(operation: &'static str, x: &MlxTensor, weight: &MlxMatrix) -> Result<()> {
    match x.parts().iter().find(|part| part.features() != weight.in_features) {
        None => Ok(()),
        Some(part) => {
            let detail =
                format!("{} features for a matrix [{}, {}]", part.features(), weight.out_features, weight.in_features);
            Err(ComputeError::Shape { operation, detail })
        }
    }
}

impl From<Failure> for ComputeError {
    fn from(failure: Failure) -> Self {
        Self::Kernel { operation: failure.operation, reason: failure.reason }
    }
}

impl std::fmt::Debug for MlxBackend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MlxBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for MlxStep {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MlxStep").field("batches", &self.groups.len()).finish_non_exhaustive()
    }
}
