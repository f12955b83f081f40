//! One thread of an import: reads a chunk of rows, converts each row, writes the results.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use half::{bf16, f16};

use super::{Conversion, Deviation, Job};
use crate::error::{IoContext as _, LibraryError};
use crate::gguf::blocks::{self, SUPER_BLOCK};
use crate::gguf::tensor_type::TensorType;
use crate::weights::Dtype;
use crate::weights::write::WeightsWriter;

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct Worker {
    input: Vec<u8>,
    outputs: [Vec<u8>; 3],
    values: Vec<f32>,
    quantized: Vec<u8>,
    deviation: Deviation,
}

impl Worker {
    /// Converts the rows `first..last` of a job and writes them.
    pub(super) fn convert(
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
            Conversion::Cast(from, to) | Conversion::Kernels(from, to, _) => {
                self.values.resize(job.columns, 0.0);
                read_dense(from, input, &mut self.values);
                let kernel = if let Conversion::Kernels(.., kernel) = job.conversion { kernel } else { 1 };
                let size = to.size() as usize;
                let taps = job.columns / kernel;
                for (index, &value) in self.values.iter().enumerate() {
                    // With a kernel of one element this is the element's own place.
                    let at = row * sizes[0] + (index % kernel * taps + index / kernel) * size;
                    let stored = write_scale(to, value, &mut weights[at..at + size]);
                    self.deviation.count(value, stored);
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
pub(crate) fn write_scale(dtype: Dtype, value: f32, slot: &mut [u8]) -> f32 {
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
