//! The work of an import: rows are read, converted and written, chunk by chunk, on all cores.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::affine::Affine;
use crate::error::LibraryError;
use crate::gguf::tensor_type::TensorType;
use crate::weights::Dtype;
use crate::weights::write::WeightsWriter;

mod worker;

#[cfg(test)]
pub(crate) use worker::{dequantize_row, read_dense, write_scale};

use worker::Worker;

/// Bytes of input that are converted at a time: large enough for the disk, small enough for the cache and for memory.
const CHUNK_BYTES: u64 = 4 << 20;

/// The number of elements of a scale's type that a quantized weight's row has.
pub(crate) fn groups(affine: Affine, columns: usize) -> usize {
    columns / affine.group_size as usize
}

/// What happens to a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Conversion {
    /// The bytes stay as they are; elements have so many bytes.
    Copy(u64),
    /// Nothing is read; so many zero bytes per element are written.
    Zeros(u64),
    /// GGUF elements or blocks become f32.
    Dense(TensorType),
    /// Dense elements are quantized as MLX does it; scales and biases have the type of the elements.
    Quantize(Dtype, Affine),
    /// GGUF blocks keep their integers; scales and biases are written in the given type (f16 or f32).
    Blocks(TensorType, Affine, Dtype),
    /// GGUF blocks are quantized anew; scales and biases are written in the given type (f16 or f32).
    Requantize(TensorType, Affine, Dtype),
}

impl Conversion {
    fn input_row_bytes(self, columns: usize) -> usize {
        match self {
            Conversion::Copy(element) => columns * element as usize,
            Conversion::Zeros(_) => 0,
            Conversion::Quantize(dtype, _) => columns * dtype.size() as usize,
            Conversion::Dense(kind) | Conversion::Blocks(kind, ..) | Conversion::Requantize(kind, ..) => {
                kind.layout().map_or(0, |layout| columns / layout.elements * layout.bytes)
            }
        }
    }

    /// Bytes of a row in each output.
    fn output_row_bytes(self, columns: usize) -> Vec<usize> {
        match self {
            Conversion::Copy(element) | Conversion::Zeros(element) => vec![columns * element as usize],
            Conversion::Dense(_) => vec![columns * 4],
            Conversion::Quantize(dtype, affine)
            | Conversion::Blocks(_, affine, dtype)
            | Conversion::Requantize(_, affine, dtype) => {
                let scales = groups(affine, columns) * dtype.size() as usize;
                vec![affine.packed_row_bytes(columns), scales, scales]
            }
        }
    }
}

/// Where the rows come from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) path: &'a Path,
    pub(crate) file: &'a File,
    /// Of the first row.
    pub(crate) offset: u64,
}

/// One tensor to be converted.
pub(crate) struct Job<'a> {
    /// The source tensor's name.
    pub(crate) name: String,
    pub(crate) source: Option<Source<'a>>,
    pub(crate) rows: u64,
    pub(crate) columns: usize,
    /// The rows of so many heads lie interleaved and are put back.
    pub(crate) rope_heads: Option<u64>,
    pub(crate) conversion: Conversion,
    /// The writer's tensors: one, or weight, scales and biases.
    pub(crate) outputs: Vec<usize>,
}

impl Job<'_> {
    fn row_bytes(&self) -> u64 {
        self.conversion.input_row_bytes(self.columns) as u64
    }

    /// Bytes that are read.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.rows * self.row_bytes()
    }

    /// Whether the tensor is written as it is.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.conversion, Conversion::Copy(_))
    }

    fn rows_per_chunk(&self) -> u64 {
        (CHUNK_BYTES / self.row_bytes().max(1)).clamp(1, self.rows.max(1))
    }

    /// The row of the source that becomes row `row`.
    ///
    /// ggml rotates neighbouring rows (2i, 2i+1) of a head, MLX the rows (i, i + head/2): llama.cpp's converter moves
    /// the one to the other, and this undoes it.
    fn source_row(&self, row: u64) -> u64 {
        let Some(heads) = self.rope_heads else { return row };
        let head = self.rows / heads;
        let (start, within) = (row / head * head, row % head);
        start + 2 * (within % (head / 2)) + within / (head / 2)
    }
}

/// How far converted weights are from what they came from: sums over all elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Deviation {
    squared_error: f64,
    squared_norm: f64,
}

impl Deviation {
    pub(crate) fn add(&mut self, other: Deviation) {
        self.squared_error += other.squared_error;
        self.squared_norm += other.squared_norm;
    }

    fn count(&mut self, original: f32, converted: f32) {
        self.squared_error += f64::from(original - converted).powi(2);
        self.squared_norm += f64::from(original).powi(2);
    }

    /// Root of the summed squared error over that of the weights.
    pub(crate) fn relative(self) -> f64 {
        if self.squared_norm == 0.0 { 0.0 } else { (self.squared_error / self.squared_norm).sqrt() }
    }
}

/// Called after each chunk with the name of the tensor and the bytes of input done so far.
pub(crate) type Report<'a> = dyn FnMut(&str, u64) + 'a;

/// Runs all jobs and returns the deviation of each.
pub(crate) fn run(
    jobs: &[Job<'_>],
    writer: &WeightsWriter,
    report: &mut Report<'_>,
) -> Result<Vec<Deviation>, LibraryError> {
    let chunks: Vec<(usize, u64, u64)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(index, job)| {
            let step = job.rows_per_chunk();
            (0..job.rows.div_ceil(step)).map(move |chunk| (index, chunk * step, ((chunk + 1) * step).min(job.rows)))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let stopped = AtomicBool::new(false);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(chunks.len().max(1));
    let (sender, receiver) = mpsc::channel();
    let mut parts = vec![Deviation::default(); chunks.len()];
    let mut failure = None;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            let (next, stopped, chunks) = (&next, &stopped, &chunks);
            scope.spawn(move || {
                let mut worker = Worker::default();
                while !stopped.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(job, first, last)) = chunks.get(number) else { break };
                    let result = worker.convert(&jobs[job], first, last, writer);
                    if result.is_err() {
                        stopped.store(true, Ordering::Relaxed);
                    }
                    if sender.send((number, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut done = 0;
        for (number, result) in receiver {
            let (job, first, last) = chunks[number];
            match result {
                Ok(deviation) => parts[number] = deviation,
                Err(error) => failure = failure.take().or(Some(error)),
            }
            done += (last - first) * jobs[job].row_bytes();
            report(&jobs[job].name, done);
        }
    });
    if let Some(error) = failure {
        return Err(error);
    }
    // Summed in the order of the chunks, so that the figures do not depend on the threads.
    let mut deviations = vec![Deviation::default(); jobs.len()];
    for ((job, ..), part) in chunks.iter().zip(parts) {
        deviations[*job].add(part);
    }
    Ok(deviations)
}

<<<<<<< HEAD
/// Buffers of one thread.
#[derive(Default)]
struct Worker {
    input: Vec<u8>,
    outputs: [Vec<u8>; 3],
    values: Vec<f32>,
    quantized: Vec<u8>,
    deviation: Deviation,
}

impl Worker {
    fn convert(
        &mut self,
        job: &Job<'_>,
        first: u64,
        last: u64,
        writer: &WeightsWriter,
    ) -> Result<Deviation, LibraryError> {
        self.deviation = Deviation::default();
        self.read(job, first, last)?;
        let rows = (last - first) as usize;
        let sizes = job.conversion.output_row_bytes(job.columns);
        for (output, size) in self.outputs.iter_mut().zip(&sizes) {
            output.clear();
            output.resize(rows * size, 0);
        }
        let row_bytes = job.conversion.input_row_bytes(job.columns);
        match job.conversion {
            Conversion::Zeros(_) => {}
            Conversion::Copy(_) => self.outputs[0].copy_from_slice(&self.input),
            _ => {
                for row in 0..rows {
                    self.convert_row(job, row, row_bytes, &sizes)?;
                }
            }
        }
        for ((&tensor, size), output) in job.outputs.iter().zip(&sizes).zip(&self.outputs) {
            writer.write(tensor, first * *size as u64, output)?;
        }
        Ok(self.deviation)
    }

    fn read(&mut self, job: &Job<'_>, first: u64, last: u64) -> Result<(), LibraryError> {
        let row_bytes = job.conversion.input_row_bytes(job.columns);
        self.input.clear();
        self.input.resize((last - first) as usize * row_bytes, 0);
        let Some(source) = job.source else { return Ok(()) };
        if job.rope_heads.is_none() {
            let offset = source.offset + first * row_bytes as u64;
            return source.file.read_exact_at(&mut self.input, offset).at("read", source.path);
        }
        for (row, slice) in (first..last).zip(self.input.chunks_exact_mut(row_bytes)) {
            let offset = source.offset + job.source_row(row) * row_bytes as u64;
            source.file.read_exact_at(slice, offset).at("read", source.path)?;
        }
        Ok(())
    }

    fn convert_row(
        &mut self,
        job: &Job<'_>,
        row: usize,
        row_bytes: usize,
        sizes: &[usize],
    ) -> Result<(), LibraryError> {
        let input = &self.input[row * row_bytes..(row + 1) * row_bytes];
        let [weights, scales, biases] = &mut self.outputs;
        match job.conversion {
            Conversion::Copy(_) | Conversion::Zeros(_) => {}
            Conversion::Dense(kind) => {
                self.values.resize(job.columns, 0.0);
                dequantize_row(kind, input, &mut self.values);
                for (bytes, value) in weights[row * sizes[0]..].chunks_exact_mut(4).zip(&self.values) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            Conversion::Quantize(dtype, affine) => {
                self.values.resize(job.columns, 0.0);
                read_dense(dtype, input, &mut self.values);
                check_finite(job, &self.values)?;
                let row_weights = &mut weights[row * sizes[0]..(row + 1) * sizes[0]];
                self.quantized.resize(affine.group_size as usize, 0);
                let packed = affine.packed_row_bytes(affine.group_size as usize);
                for (index, group) in self.values.chunks_exact(affine.group_size as usize).enumerate() {
                    let (scale, bias) = affine.scale_and_bias(group);
                    affine.quantize_group(group, scale, bias, &mut self.quantized);
                    affine.pack(&self.quantized, &mut row_weights[index * packed..(index + 1) * packed]);
                    let at = row * sizes[1] + index * dtype.size() as usize;
                    let stored_scale = write_scale(dtype, scale, &mut scales[at..]);
                    let stored_bias = write_scale(dtype, bias, &mut biases[at..]);
                    for (&value, &q) in group.iter().zip(&self.quantized) {
                        self.deviation.count(value, f32::from(q) * stored_scale + stored_bias);
                    }
                }
            }
            Conversion::Blocks(kind, affine, dtype) => {
                let Some(layout) = kind.layout() else { return Ok(()) };
                let (mut quantized, mut block_scales, mut block_biases) = ([0u8; SUPER_BLOCK], [0f32; 16], [0f32; 16]);
                let packed = affine.packed_row_bytes(layout.elements);
                let per_block = layout.elements / layout.group;
                for (index, block) in input.chunks_exact(layout.bytes).enumerate() {
                    blocks::decode(kind, block, &mut quantized, &mut block_scales, &mut block_biases);
                    let at = row * sizes[0] + index * packed;
                    affine.pack(&quantized[..layout.elements], &mut weights[at..at + packed]);
                    for group in 0..per_block {
                        let at = row * sizes[1] + (index * per_block + group) * dtype.size() as usize;
                        let (scale, bias) = (block_scales[group], block_biases[group]);
                        let stored_scale = write_scale(dtype, scale, &mut scales[at..]);
                        let stored_bias = write_scale(dtype, bias, &mut biases[at..]);
                        for &q in &quantized[group * layout.group..(group + 1) * layout.group] {
                            let q = f32::from(q);
                            self.deviation.count(q * scale + bias, q * stored_scale + stored_bias);
                        }
                    }
                }
            }
            Conversion::Requantize(kind, affine, dtype) => {
                self.values.resize(job.columns, 0.0);
                dequantize_row(kind, input, &mut self.values);
                self.quantized.resize(affine.group_size as usize, 0);
                let packed = affine.packed_row_bytes(affine.group_size as usize);
                for (index, group) in self.values.chunks_exact(affine.group_size as usize).enumerate() {
                    let at = row * sizes[1] + index * dtype.size() as usize;
                    let (scale, bias) = affine.scale_and_bias(group);
                    // Rounded first, so that the integers are chosen for the scale that is stored. A scale too small
                    // for 16 bits becomes the smallest that is not zero.
                    let mut stored_scale = write_scale(dtype, scale, &mut scales[at..]);
                    if stored_scale == 0.0 {
                        stored_scale = write_scale(dtype, f16::from_bits(1).to_f32(), &mut scales[at..]);
                    }
                    let stored_bias = write_scale(dtype, bias, &mut biases[at..]);
                    affine.quantize_group(group, stored_scale, stored_bias, &mut self.quantized);
                    let start = row * sizes[0] + index * packed;
                    affine.pack(&self.quantized, &mut weights[start..start + packed]);
                    for (&value, &q) in group.iter().zip(&self.quantized) {
                        self.deviation.count(value, f32::from(q) * stored_scale + stored_bias);
                    }
                }
            }
        }
        Ok(())
    }
}

fn check_finite(job: &Job<'_>, values: &[f32]) -> Result<(), LibraryError> {
    if values.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    let path = job.source.map_or(Path::new(""), |source| source.path);
    Err(LibraryError::malformed(path, format!("tensor \"{}\" holds values that are not finite numbers", job.name)))
}

/// Reads a row of any GGUF type as f32.
pub(crate) fn dequantize_row(kind: TensorType, row: &[u8], values: &mut [f32]) {
    match kind {
        TensorType::F32 => read_dense(Dtype::F32, row, values),
        TensorType::F16 => read_dense(Dtype::F16, row, values),
        TensorType::Bf16 => read_dense(Dtype::Bf16, row, values),
        _ => {
            let Some(layout) = kind.layout() else { return };
            for (block, values) in row.chunks_exact(layout.bytes).zip(values.chunks_exact_mut(layout.elements)) {
                blocks::dequantize(kind, block, layout.group, values);
            }
        }
    }
}

/// Reads dense elements as f32, which holds all of them exactly.
pub(crate) fn read_dense(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    let pairs = bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        Dtype::F16 => values.iter_mut().zip(pairs).for_each(|(value, pair)| *value = f16::from_le_bytes(pair).to_f32()),
        Dtype::Bf16 => {
            values.iter_mut().zip(pairs).for_each(|(value, pair)| *value = bf16::from_le_bytes(pair).to_f32());
        }
        _ => {
            for (value, word) in values.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            }
        }
    }
}

/// Writes a scale or a bias at the start of `slot` and returns the value that was stored.
fn write_scale(dtype: Dtype, value: f32, slot: &mut [u8]) -> f32 {
    match dtype {
        Dtype::F16 => {
            let rounded = f16::from_f32(value);
            slot[..2].copy_from_slice(&rounded.to_le_bytes());
            rounded.to_f32()
        }
        Dtype::Bf16 => {
            let rounded = bf16::from_f32(value);
            slot[..2].copy_from_slice(&rounded.to_le_bytes());
            rounded.to_f32()
        }
        _ => {
            slot[..4].copy_from_slice(&value.to_le_bytes());
            value
        }
    }
}

=======
>>>>>>> l1
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rope_rows_are_put_back() {
        let job = Job {
            name: "q".into(),
            source: None,
            rows: 12,
            columns: 1,
            rope_heads: Some(2),
            conversion: Conversion::Copy(4),
            outputs: vec![],
        };
        // Two heads of six rows; ggml has (0, 3, 1, 4, 2, 5), so row 1 of the original is its row 2.
        let order: Vec<u64> = (0..12).map(|row| job.source_row(row)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
