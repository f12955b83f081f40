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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

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
}
