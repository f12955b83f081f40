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

pub(crate) use worker::read_dense;
#[cfg(test)]
pub(crate) use worker::{dequantize_row, write_scale};

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
    /// Dense elements of one type become another's.
    Cast(Dtype, Dtype),
    /// Dense elements of a convolution, `[in, kernel]` in a row, become `[kernel, in]`; the kernel's width is given.
    Kernels(Dtype, Dtype, usize),
    /// GGUF blocks are quantized anew; scales and biases are written in the given type (f16 or f32).
    Requantize(TensorType, Affine, Dtype),
}

impl Conversion {
    fn input_row_bytes(self, columns: usize) -> usize {
        match self {
            Conversion::Copy(element) => columns * element as usize,
            Conversion::Zeros(_) => 0,
            Conversion::Quantize(dtype, _) | Conversion::Cast(dtype, _) | Conversion::Kernels(dtype, ..) => {
                columns * dtype.size() as usize
            }
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
            Conversion::Cast(_, to) | Conversion::Kernels(_, to, _) => vec![columns * to.size() as usize],
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
