<<<<<<< HEAD
//! `linnet pull`

use super::import;
use crate::{exit_code::Interrupted, models, output, progress};
use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use linnet_library::{
    Affine, FileSelection, HubClient, ImportOptions, Imported, PullProgress, PullRequest, StarterSource, Store,
    fetch_starter, pull,
};
use linnet_models::SUPPORTED_ARCHITECTURES;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// How the starter is quantized where it comes as bf16: groups of 32 keep so small a model coherent.
const STARTER_QUANTIZATION: Affine = Affine { bits: 4, group_size: 32 };

/// Download a model from the Hugging Face hub, verify and import it
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  linnet pull starter\n  linnet pull mlx-community/SmolLM2-360M-Instruct\n  \
    linnet pull maker/model --quantize 4\n  linnet pull maker/model-GGUF --file model-Q4_0.gguf\n\n\
    HF_ENDPOINT names another hub, HF_TOKEN a token for models that need one. An interrupted download goes on where \
    it stopped.")]
pub(crate) struct Arguments {
    /// A repository such as maker/model, or `starter` for a small model that suits any machine
    #[arg(value_name = "MODEL")]
    model: String,
    /// A branch, tag or commit
    #[arg(long, default_value = "main")]
    revision: String,
    /// The GGUF file to take, where a repository has several
    #[arg(long, value_name = "FILE")]
    file: Option<String>,
    /// The name to give it [default: the repository's]
    #[arg(long)]
    name: Option<String>,
    /// Quantize dense weights to this many bits; without it they are kept as they are
    #[arg(long, value_name = "BITS", value_parser = ["2", "3", "4", "5", "6", "8"])]
    quantize: Option<String>,
    /// Weights that share a scale
    #[arg(long, value_name = "N", default_value = "64", value_parser = ["32", "64", "128"], requires = "quantize")]
    group_size: String,
    /// Download again even if a model of that name is installed
    #[arg(long)]
    replace: bool,
=======
//! `linnet pull`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use linnet_library::{
    Affine, FileSelection, HubClient, Imported, PullRequest, StarterSource, Store, fetch_starter, pull,
};

use crate::commands::import::{ConversionArguments, carry_out, tell};
use crate::exit::Exit;
use crate::models::{STARTER, STARTER_NAME, home};
use crate::output;
use crate::progress::Report;

/// What the starter is quantized to when it comes from the hub in bf16: a model this small loses too much at 4 bits.
const STARTER_AFFINE: Affine = Affine { bits: 8, group_size: 64 };

/// Arguments of `linnet pull`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  linnet pull starter
  linnet pull mlx-community/Llama-3.2-1B-Instruct-4bit
  linnet pull bartowski/Llama-3.2-1B-Instruct-GGUF --gguf Q4_K_M

HF_ENDPOINT names another hub or mirror, HF_TOKEN a token for private and gated models.
An interrupted pull goes on where it stopped.")]
pub(crate) struct PullArguments {
    /// A repository on the Hugging Face hub (owner/name), or `starter`
    model: String,
    /// A branch, tag or commit of the repository
    #[arg(long, default_value = "main")]
    revision: String,
    /// Take the GGUF file of this name, or with this in its name
    #[arg(long, value_name = "NAME")]
    gguf: Option<String>,
    #[command(flatten)]
    conversion: ConversionArguments,
>>>>>>> a
    /// Print JSON
    #[arg(long)]
    json: bool,
}

<<<<<<< HEAD
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let store = Store::from_environment()?;
    let is_starter = arguments.model == models::STARTER_ALIAS;
    let default_name = if is_starter { models::STARTER_NAME } else { &arguments.model };
    let name = arguments.name.as_deref().unwrap_or(default_name);
    if is_starter && !arguments.replace && store.path_of(name)?.exists() {
        let entry = store.find(name)?;
        if entry.problem.is_none() {
            return if arguments.json {
                output::json(&Imported { entry, notes: Vec::new() })
            } else {
                Ok(output::line(format_args!("{name} is installed already"))?)
            };
        }
    }
    store.check_free(name, arguments.replace || is_starter)?;

    let request = PullRequest {
        id: if is_starter { models::STARTER_NAME.to_owned() } else { arguments.model.clone() },
        revision: arguments.revision.clone(),
        selection: arguments.file.clone().map_or(FileSelection::Model, FileSelection::Gguf),
    };
    let work = downloads_folder(&store).join(request.folder_name());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let source = runtime.block_on(download(is_starter, &request, &work))?;

    let quantize = match &arguments.quantize {
        Some(bits) => Some(Affine { bits: bits.parse()?, group_size: arguments.group_size.parse()? }),
        None => (is_starter && source.is_dir()).then_some(STARTER_QUANTIZATION),
    };
    let options = ImportOptions {
        name: Some(name.to_owned()),
        quantize,
        compact_scales: false,
        supported: SUPPORTED_ARCHITECTURES,
        replace: arguments.replace || is_starter,
    };
    let imported = import::with_bar(&store, &source, &options)
        .with_context(|| format!("the download is complete in {}, but its import failed", work.display()))?;
    if let Err(error) = std::fs::remove_dir_all(&work) {
        tracing::warn!("{} could not be removed: {error}", work.display());
    }
    if arguments.json { output::json(&imported) } else { import::report(&imported) }
}

/// Where downloads lie until they are imported: beside the models, on the same disk.
fn downloads_folder(store: &Store) -> PathBuf {
    store.models_folder().with_file_name("downloads")
}

/// Downloads into `work` and returns what is to be imported. Ctrl-C leaves what came, to go on from.
async fn download(is_starter: bool, request: &PullRequest, work: &Path) -> anyhow::Result<PathBuf> {
    let hub = HubClient::from_environment()?;
    let bar = progress::byte_bar(&request.id);
    let told = Mutex::new(None);
    let report = |progress: &PullProgress| show(&bar, &told, progress);
    let fetched = async {
        if is_starter {
            return Ok::<_, anyhow::Error>(match fetch_starter(&hub, work, &report).await? {
                StarterSource::Folder(folder) => folder,
                StarterSource::Gguf(file) => file,
            });
        }
        let pulled = pull(&hub, request, work, &report).await?;
        Ok(pulled.gguf.unwrap_or_else(|| work.to_path_buf()))
    };
    let result = tokio::select! {
        result = fetched => result,
        _ = tokio::signal::ctrl_c() => Err(Interrupted.into()),
    };
    bar.finish_and_clear();
    result
}

fn show(bar: &ProgressBar, told: &Mutex<Option<String>>, progress: &PullProgress) {
    if progress.bytes_total > 0 {
        bar.set_length(progress.bytes_total);
        bar.set_position(progress.bytes_done);
    }
    let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if progress.note.is_some() && progress.note != *told {
        if let Some(text) = &progress.note {
            progress::note(bar, text);
        }
        told.clone_from(&progress.note);
    }
=======
pub(crate) fn run(arguments: &PullArguments) -> anyhow::Result<Exit> {
    let store = Store::from_environment()?;
    let is_starter = arguments.model == STARTER;
    let default_name = if is_starter { STARTER_NAME } else { &arguments.model };
    let name = arguments.conversion.name.clone().unwrap_or_else(|| default_name.to_owned());
    if !arguments.conversion.force && store.path_of(&name)?.exists() {
        return already_here(&store, &name, arguments.json);
    }
    // A folder of its own for each repository, so that an interrupted pull finds its bytes again.
    let work = home(&store).join("downloads").join(default_name.replace('/', "--"));
    let imported = if is_starter {
        pull_starter(&store, &work, &name, arguments)?
    } else {
        pull_repository(&store, &work, &name, arguments)?
    };
    if let Err(error) = std::fs::remove_dir_all(&work) {
        eprintln!("note: {} is no longer needed but could not be removed: {error}", work.display());
    }
    tell(&imported, arguments.json)
}

fn already_here(store: &Store, name: &str, json: bool) -> anyhow::Result<Exit> {
    if json {
        output::json(&serde_json::json!({ "entry": store.find(name)?, "notes": ["it was already here"] }))?;
    } else {
        output::line(&format!("{name} is already here; --force fetches it again"))?;
    }
    Ok(Exit::Done)
}

fn pull_starter(store: &Store, work: &Path, name: &str, arguments: &PullArguments) -> anyhow::Result<Imported> {
    let source = download(|hub, report| {
        let work = work.to_path_buf();
        async move { Ok(fetch_starter(&hub, &work, &|progress| report.pull(progress)).await?) }
    })?;
    let conversion = &arguments.conversion;
    let (path, quantize) = match source {
        StarterSource::Folder(path) => (path, conversion.affine().or(Some(STARTER_AFFINE))),
        StarterSource::Gguf(path) => (path, conversion.affine()),
    };
    carry_out(store, &path, conversion, Some(name.to_owned()), quantize)
}

fn pull_repository(store: &Store, work: &Path, name: &str, arguments: &PullArguments) -> anyhow::Result<Imported> {
    let request = PullRequest {
        revision: arguments.revision.clone(),
        selection: arguments.gguf.clone().map_or(FileSelection::Model, FileSelection::Gguf),
        ..PullRequest::new(arguments.model.clone())
    };
    let path: PathBuf = download(|hub, report| {
        let work = work.to_path_buf();
        async move {
            let pulled = pull(&hub, &request, &work, &|progress| report.pull(progress)).await?;
            Ok(pulled.gguf.unwrap_or(work))
        }
    })?;
    let conversion = &arguments.conversion;
    carry_out(store, &path, conversion, Some(name.to_owned()), conversion.affine())
}

/// Runs a download with a progress bar; Ctrl-C ends the process, and what came is kept.
fn download<T, F>(work: impl FnOnce(HubClient, Report) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let hub = HubClient::from_environment()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the download threads")?;
    runtime.block_on(work(hub, Report::new()))
>>>>>>> a
}
