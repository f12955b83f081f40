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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

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
}
