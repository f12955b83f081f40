//! Imports: an MLX folder, a Hugging Face folder, a GGUF file or a CTranslate2 Whisper becomes a model of the store.
//!
//! Every import has the same shape: the source is read and checked in full (`prepare`), which yields a list of tensors
//! to be written and of conversions that fill them; then the space is checked, everything is written into a staging
//! folder, and the folder is renamed into place.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::affine::Affine;
use crate::config::CONFIG_NAME;
use crate::convert::{self, Conversion, Deviation, Job};
use crate::disk;
use crate::error::{IoContext as _, LibraryError};
use crate::gguf::GgufFile;
use crate::store::{ModelEntry, Origin, Record, Store, check_name};
use crate::weights::write::{CreateFile, NewTensor, SHARD_LIMIT, WeightsWriter, create_file};
use crate::whisper;

mod chat_templates;
pub(crate) mod ctranslate2;
pub(crate) mod detect;
pub(crate) mod folder;
pub(crate) mod gguf;
mod suggested_sampling;

pub use suggested_sampling::SuggestedSampling;

use detect::Detected;

/// How a model is imported.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions<'a> {
    /// The model's name in the store; by default it follows from the source's name.
    pub name: Option<String>,
    /// Quantizes the dense matrices ([`Affine::default`] is mlx-lm's default); `None` keeps them as they are.
    pub quantize: Option<Affine>,
    /// Rounds the scales of Q4_K and Q5_K to 16 bits: a sixth smaller, no longer exact (the notes say by how much).
    pub compact_scales: bool,
    /// The `model_type`s that the engine runs; others are refused.
    pub supported: &'a [&'a str],
    /// Takes the place of a model of the same name.
    pub replace: bool,
    /// Where the source itself came from; by default it is a file or folder of the user's.
    pub origin: Option<Origin>,
    /// Written into generation_config.json where the source says nothing about sampling.
    pub sampling: Option<SuggestedSampling>,
}

/// What an import is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The source is read and checked.
    Checking,
    /// Weights are copied or converted; `done` and `total` are bytes of the source.
    Converting,
    /// Files are made durable and renamed into place.
    Finishing,
}

/// A step of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// The tensor or file that it is done to.
    pub item: String,
    /// Bytes of the source done so far.
    pub done: u64,
    /// Bytes of the source in all.
    pub total: u64,
}

/// A finished import.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Imported {
    /// The new model.
    pub entry: ModelEntry,
    /// What was changed, left out or lost.
    pub notes: Vec<String>,
}

/// A file that goes beside the weights.
pub(crate) enum Companion {
    Json(Value),
    Copy(PathBuf),
}

/// An import that has been checked and can be carried out.
pub(crate) struct Prepared<'a> {
    pub(crate) name: String,
    pub(crate) format: &'static str,
    pub(crate) config: Map<String, Value>,
    pub(crate) companions: Vec<(String, Companion)>,
    pub(crate) tensors: Vec<NewTensor>,
    pub(crate) jobs: Vec<Job<'a>>,
    pub(crate) notes: Vec<String>,
}

/// Imports a model. `source` is a folder in MLX's or Hugging Face's layout, a GGUF file, or Whisper in one of its forms
/// (those, a folder of CTranslate2, a file of whisper.cpp).
///
/// # Errors
/// Every [`LibraryError`] that names the source; on any error the store is as it was before.
pub fn import(
    store: &Store,
    source: &Path,
    options: &ImportOptions<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Imported, LibraryError> {
    import_with(store, source, options, progress, &create_file)
}

/// [`import`], with the files made by `create`.
pub(crate) fn import_with(
    store: &Store,
    source: &Path,
    options: &ImportOptions<'_>,
    progress: &mut dyn FnMut(Progress),
    create: &CreateFile,
) -> Result<Imported, LibraryError> {
    let checking = Progress { stage: Stage::Checking, item: disk::file_name_text(source), done: 0, total: 0 };
    progress(checking);
    if let Some(affine) = options.quantize.filter(|affine| !affine.is_supported()) {
        return Err(LibraryError::Quantize {
            path: source.to_owned(),
            reason: format!("{affine} is not supported; use 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"),
        });
    }
    if let Some(name) = &options.name {
        store.check_free(name, options.replace)?;
    }
    match detect::detect(source)? {
        Detected::Folder(path) => {
            let source = folder::FolderSource::open(&path)?;
            carry_out(store, &path, source.prepare(options)?, options, progress, create)
        }
        Detected::Ctranslate2(path) => {
            let source = ctranslate2::Ct2Whisper::open(&path)?;
            carry_out(store, &path, source.prepare()?, options, progress, create)
        }
        Detected::Gguf(path) => {
            let file = GgufFile::open(&path)?;
            carry_out(store, &path, gguf::prepare(&file, options)?, options, progress, create)
        }
        Detected::Whisper(form, path) => {
            let model = whisper::open(form, &path)?;
            carry_out(store, &path, model.prepare(options)?, options, progress, create)
        }
    }
}

fn carry_out(
    store: &Store,
    source: &Path,
    prepared: Prepared<'_>,
    options: &ImportOptions<'_>,
    progress: &mut dyn FnMut(Progress),
    create: &CreateFile,
) -> Result<Imported, LibraryError> {
    let name = options.name.clone().unwrap_or(prepared.name);
    check_name(&name)?;
    store.check_free(&name, options.replace)?;
    let size: u64 = prepared.tensors.iter().map(NewTensor::bytes).sum();
    disk::check_free_space(store.models_folder(), size)?;

    let mut companions = prepared.companions;
    if let Some(sampling) = options.sampling {
        sampling.add_to(&mut companions)?;
    }

    let staging = store.stage()?;
    let folder = staging.path();
    for (file, companion) in companions {
        let target = folder.join(file);
        let parent = target.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).at("make", parent)?;
        match companion {
            Companion::Json(value) => disk::write_json(&target, &value)?,
            Companion::Copy(from) => {
                std::fs::copy(&from, &target).at("copy", &from)?;
            }
        }
    }
    disk::write_json(&folder.join(CONFIG_NAME), &Value::Object(prepared.config))?;

    let total: u64 = prepared.jobs.iter().map(Job::input_bytes).sum();
    let writer = WeightsWriter::create(folder, prepared.tensors, SHARD_LIMIT, create)?;
    let deviations = convert::run(&prepared.jobs, &writer, &mut |item, done| {
        progress(Progress { stage: Stage::Converting, item: item.to_owned(), done, total });
    })?;
    progress(Progress { stage: Stage::Finishing, item: name.clone(), done: total, total });
    writer.finish()?;

    let mut notes = conversion_notes(&prepared.jobs, Some(&deviations));
    notes.extend(prepared.notes);
    let origin = options.origin.clone().unwrap_or_else(|| Origin::path(source));
    Record::now(origin, prepared.format, notes.clone()).write(folder)?;
    let path = staging.commit(&name, options.replace)?;
    Ok(Imported { entry: ModelEntry::read(&name, &path), notes })
}

/// One line for each kind of conversion: how many tensors, and how far from the source, once that is known.
pub(crate) fn conversion_notes(jobs: &[Job<'_>], deviations: Option<&[Deviation]>) -> Vec<String> {
    let mut kinds: Vec<(Conversion, usize, Deviation)> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let is_kept = match job.conversion {
            Conversion::Copy(_) | Conversion::Zeros(_) => true,
            Conversion::Cast(from, to) | Conversion::Kernels(from, to, _) => from == to,
            _ => false,
        };
        if is_kept {
            continue;
        }
        let deviation = deviations.and_then(|list| list.get(index)).copied().unwrap_or_default();
        match kinds.iter_mut().find(|kind| kind.0 == job.conversion) {
            Some(kind) => {
                kind.1 += 1;
                kind.2.add(deviation);
            }
            None => kinds.push((job.conversion, 1, deviation)),
        }
    }
    kinds
        .into_iter()
        .map(|(conversion, count, deviation)| note(conversion, count, deviations.map(|_| deviation)))
        .collect()
}

fn note(conversion: Conversion, count: usize, deviation: Option<Deviation>) -> String {
    let tensors = if count == 1 { "1 tensor".to_owned() } else { format!("{count} tensors") };
    let error = deviation
        .map_or_else(String::new, |deviation| format!(", relative error {:.3} %", 100.0 * deviation.relative()));
    match conversion {
        Conversion::Copy(_) | Conversion::Zeros(_) => tensors,
        Conversion::Dense(kind) => format!("{tensors} of {} widened to f32, exactly", kind.name()),
        Conversion::Cast(from, to) | Conversion::Kernels(from, to, _) => {
            format!("{tensors} of {} kept as {}{error}", from.name().to_lowercase(), to.name().to_lowercase())
        }
        Conversion::Quantize(dtype, affine) => {
            format!("{tensors} of {} quantized to {affine}{error}", dtype.name().to_lowercase())
        }
        Conversion::Blocks(kind, affine, dtype) => {
            let scales = dtype.name().to_lowercase();
            let exact = deviation.is_none_or(|deviation| deviation.relative() == 0.0);
            if exact {
                format!("{tensors} of {} kept exactly as {affine} with {scales} scales", kind.name())
            } else {
                format!("{tensors} of {} kept as {affine}, scales rounded to {scales}{error}", kind.name())
            }
        }
        Conversion::Requantize(kind, affine, _) => format!(
            "{tensors} of {} quantized anew to {affine}, because their groups of 16 are narrower than any affine \
             group{error}",
            kind.name()
        ),
    }
}

#[cfg(test)]
#[path = "import/import_tests.rs"]
mod tests;
