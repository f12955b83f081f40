//! GGUF files: names and configuration come from the architecture's table, the tokenizer from the metadata, and every
//! block type finds its place among the affine ones.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::f16;
use serde_json::{Map, Value, json};

use super::folder::quantized_tensors;
use super::{Companion, ImportOptions, Prepared, detect};
use crate::affine::Affine;
use crate::config::Quantization;
use crate::convert::{Conversion, Job, Source};
use crate::error::{IoContext as _, LibraryError};
use crate::gguf::architectures::{self, Target};
use crate::gguf::blocks::{self, SUPER_BLOCK};
use crate::gguf::tensor_type::{Mapping, TensorType};
use crate::gguf::{GgufFile, GgufTensor, tokenizer};
use crate::weights::Dtype;
use crate::weights::write::NewTensor;

/// Bytes that are looked at together when the scales are checked.
const SCAN_BYTES: u64 = 4 << 20;

/// Checks a file and plans its import.
pub(crate) fn prepare<'a>(file: &'a GgufFile, options: &ImportOptions<'_>) -> Result<Prepared<'a>, LibraryError> {
    let architecture = architectures::find(file, options.supported)?;
    check_parts(file)?;
    let layout = (architecture.layout)(file)?;
    let rows = layout.config.get("vocab_size").and_then(Value::as_u64).unwrap_or(0);
    let tokenizer = tokenizer::rebuild(file, rows)?;
    let ranges = scan(file, &layout.targets)?;

    let mut prepared = Prepared {
        name: detect::default_name(&file.path),
        format: "gguf",
        config: layout.config,
        companions: Vec::new(),
        tensors: Vec::new(),
        jobs: Vec::new(),
        notes: layout.notes,
    };
    let mut kinds = Vec::new();
    for (target, range) in layout.targets.iter().zip(ranges) {
        let affine = add(&mut prepared, file, target, range, options)?;
        if target.quantizable {
            let layer = target.name.strip_suffix(".weight").unwrap_or(&target.name).to_owned();
            kinds.push((layer, affine, target.shape.iter().product()));
        }
    }
    if let Some(quantization) = Quantization::from_layers(kinds) {
        prepared.config.insert("quantization".into(), quantization.to_json());
        // mlx-lm writes both names, so that transformers sees that the weights are quantized.
        prepared.config.insert("quantization_config".into(), quantization.to_json());
    }
    add_token_ids(&mut prepared, &tokenizer);
    prepared.notes.extend(tokenizer.notes);
    prepared.companions.push(("tokenizer.json".into(), Companion::Json(tokenizer.tokenizer)));
    prepared.companions.push(("tokenizer_config.json".into(), Companion::Json(tokenizer.tokenizer_config)));
    Ok(prepared)
}

/// A file that is one of several cannot be imported alone.
fn check_parts(file: &GgufFile) -> Result<(), LibraryError> {
    match file.integer("split.count") {
        Some(count) if count > 1 => Err(LibraryError::UnsupportedFeature {
            path: file.path.clone(),
            feature: format!("a division into {count} files"),
            remedy: "join them first with llama-gguf-split --merge".into(),
        }),
        _ => Ok(()),
    }
}

/// The token ids of config.json and generation_config.json.
fn add_token_ids(prepared: &mut Prepared<'_>, tokenizer: &tokenizer::Rebuilt) {
    let mut generation = Map::new();
    let ends = match tokenizer.ends.as_slice() {
        [] => None,
        [only] => Some(json!(only)),
        several => Some(json!(several)),
    };
    let ids = [
        ("bos_token_id", tokenizer.beginning.map(Value::from)),
        ("eos_token_id", ends),
        ("pad_token_id", tokenizer.padding.map(Value::from)),
    ];
    for (name, id) in ids {
        if let Some(id) = id {
            prepared.config.insert(name.into(), id.clone());
            generation.insert(name.into(), id);
        }
    }
    prepared.companions.push(("generation_config.json".into(), Companion::Json(Value::Object(generation))));
}

/// What 16 bits can hold of a tensor's scales and biases.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ScaleRange {
    /// Some scale or bias would be rounded.
    pub(crate) rounded: bool,
    /// Some scale, bias or weight is beyond f16's largest number.
    pub(crate) too_large: bool,
}

/// Looks at the scales of all quantized tensors, on all cores: the widths of the outputs depend on them.
fn scan(file: &GgufFile, targets: &[Target]) -> Result<Vec<ScaleRange>, LibraryError> {
    let ranges = Mutex::new(vec![ScaleRange::default(); targets.len()]);
    let failure = Mutex::new(None);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(target) = targets.get(index) else { break };
            let Some(tensor) = target.source.as_ref().and_then(|name| file.tensors.get(name)) else { continue };
            match scan_tensor(&file.path, &file.file, tensor) {
                Ok(range) => {
                    if let Ok(mut ranges) = ranges.lock() {
                        ranges[index] = range;
                    }
                }
                Err(error) => {
                    if let Ok(mut failure) = failure.lock() {
                        failure.get_or_insert(error);
                    }
                    break;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    match failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(ranges.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)),
    }
}

/// Looks at the scales of one tensor.
pub(crate) fn scan_tensor(path: &Path, file: &File, tensor: &GgufTensor) -> Result<ScaleRange, LibraryError> {
    let layout = tensor.kind.layout().ok_or_else(|| LibraryError::UnsupportedFeature {
        path: path.to_owned(),
        feature: format!("the element type {} (tensor \"{}\")", tensor.kind.name(), tensor.name),
        remedy: "use a file in F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or Q2_K to Q6_K".into(),
    })?;
    let mut range = ScaleRange::default();
    let Some(mapping) = tensor.kind.mapping() else { return Ok(range) };
    let (Mapping::Exact(affine) | Mapping::Requantized(affine)) = mapping;
    let largest_integer = affine.maximum() as f32;
    let half_largest = f16::MAX.to_f32();
    let step = SCAN_BYTES / layout.bytes as u64 * layout.bytes as u64;
    let (mut offset, mut bytes) = (0, Vec::new());
    let (mut quantized, mut scales, mut biases) = ([0u8; SUPER_BLOCK], [0f32; 16], [0f32; 16]);
    let groups = layout.elements / layout.group;
    while offset < tensor.bytes {
        bytes.resize(step.min(tensor.bytes - offset) as usize, 0);
        file.read_exact_at(&mut bytes, tensor.offset + offset).at("read", path)?;
        for block in bytes.chunks_exact(layout.bytes) {
            blocks::decode(tensor.kind, block, &mut quantized, &mut scales, &mut biases);
            for (&scale, &bias) in scales.iter().zip(&biases).take(groups) {
                if !(scale.is_finite() && bias.is_finite()) {
                    return Err(LibraryError::malformed(
                        path,
                        format!("tensor \"{}\" holds scales that are not finite numbers", tensor.name),
                    ));
                }
                let top = (scale * largest_integer + bias).abs();
                range.too_large |= scale.abs().max(bias.abs()).max(top) > half_largest;
                range.rounded |= f16::from_f32(scale).to_f32() != scale || f16::from_f32(bias).to_f32() != bias;
            }
        }
        offset += step;
    }
    Ok(range)
}

/// Adds the jobs and tensors of one target; returns how it is quantized.
fn add<'a>(
    prepared: &mut Prepared<'a>,
    file: &'a GgufFile,
    target: &Target,
    range: ScaleRange,
    options: &ImportOptions<'_>,
) -> Result<Option<Affine>, LibraryError> {
    let first = prepared.tensors.len();
    let Some(name) = &target.source else {
        prepared.tensors.push(NewTensor { name: target.name.clone(), dtype: Dtype::F32, shape: target.shape.clone() });
        prepared.jobs.push(Job {
            name: target.name.clone(),
            source: None,
            rows: 1,
            columns: target.shape.iter().product::<u64>() as usize,
            rope_heads: None,
            conversion: Conversion::Zeros(Dtype::F32.size()),
            outputs: vec![first],
        });
        return Ok(None);
    };
    let tensor =
        file.tensors.get(name).ok_or_else(|| LibraryError::malformed(&file.path, format!("{name} is missing")))?;
    let conversion = conversion(tensor, target, range, options);
    let moves_entries = target.rope_heads.is_some() && target.shape.len() == 1;
    if moves_entries && tensor.kind.layout().is_some_and(|layout| layout.elements > 1) {
        return Err(LibraryError::UnsupportedFeature {
            path: file.path.clone(),
            feature: format!("a bias in blocks of {} (tensor \"{name}\")", tensor.kind.name()),
            remedy: "its entries change places, and blocks cannot be parted; use a file with biases in F32".into(),
        });
    }
    // The entries of an interleaved bias move like the rows of its weight.
    let (rows, columns) =
        if moves_entries { (tensor.elements(), 1) } else { (tensor.rows(), tensor.columns() as usize) };
    let (affine, outputs) = match conversion {
        Conversion::Quantize(dtype, affine)
        | Conversion::Blocks(_, affine, dtype)
        | Conversion::Requantize(_, affine, dtype) => {
            let layer = target.name.strip_suffix(".weight").unwrap_or(&target.name);
            prepared.tensors.extend(quantized_tensors(layer, rows, columns, affine, dtype));
            (Some(affine), vec![first, first + 1, first + 2])
        }
        _ => {
            let dtype = match (conversion, tensor.kind) {
                (Conversion::Copy(_), TensorType::F16) => Dtype::F16,
                (Conversion::Copy(_), TensorType::Bf16) => Dtype::Bf16,
                _ => Dtype::F32,
            };
            prepared.tensors.push(NewTensor { name: target.name.clone(), dtype, shape: target.shape.clone() });
            (None, vec![first])
        }
    };
    prepared.jobs.push(Job {
        name: name.clone(),
        source: Some(Source { path: &file.path, file: &file.file, offset: tensor.offset }),
        rows,
        columns,
        rope_heads: target.rope_heads,
        conversion,
        outputs,
    });
    Ok(affine)
}

/// What becomes of a tensor.
fn conversion(tensor: &GgufTensor, target: &Target, range: ScaleRange, options: &ImportOptions<'_>) -> Conversion {
    let dense = match tensor.kind {
        TensorType::F32 => Some(Dtype::F32),
        TensorType::F16 => Some(Dtype::F16),
        TensorType::Bf16 => Some(Dtype::Bf16),
        _ => None,
    };
    if let Some(dtype) = dense {
        let fits =
            |affine: &Affine| target.quantizable && tensor.columns().is_multiple_of(u64::from(affine.group_size));
        return match options.quantize.filter(fits) {
            Some(affine) => Conversion::Quantize(dtype, affine),
            None => Conversion::Copy(dtype.size()),
        };
    }
    let half_or_full = |half: bool| if half { Dtype::F16 } else { Dtype::F32 };
    match tensor.kind.mapping().filter(|_| target.quantizable) {
        None => Conversion::Dense(tensor.kind),
        Some(Mapping::Exact(affine)) => {
            let half = !range.too_large && (!range.rounded || options.compact_scales);
            Conversion::Blocks(tensor.kind, affine, half_or_full(half))
        }
        Some(Mapping::Requantized(affine)) => {
            Conversion::Requantize(tensor.kind, affine, half_or_full(!range.too_large))
        }
    }
}

#[cfg(test)]
#[path = "real_models_tests.rs"]
mod real_models_tests;

#[cfg(test)]
#[path = "gguf_tests.rs"]
mod tests;
