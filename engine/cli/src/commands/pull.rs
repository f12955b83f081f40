//! `linnet pull`.

use std::sync::Arc;

use anyhow::Context;
use clap::CommandFactory;
use clap::error::ErrorKind;
use linnet_library::{
    FileSelection, HubClient, ModelEntry, PullTarget, Store, StorePull, StorePullListener, StorePullProgress,
    StorePulled,
};

use crate::arguments::Arguments;
use crate::commands::import::{ConversionArguments, tell};
use crate::exit::Exit;
use crate::models::ChoiceError;
use crate::output;
use crate::progress::Report;

/// Arguments of `linnet pull`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  linnet pull starter
  linnet pull whisper-base          # hears speech; also whisper-tiny.en, whisper-small, whisper-large-v3-turbo
  linnet pull mlx-community/Llama-3.2-1B-Instruct-4bit
  linnet pull bartowski/Llama-3.2-1B-Instruct-GGUF --gguf Q4_K_M

HF_ENDPOINT names another hub or mirror, HF_TOKEN a token for private and gated models.
An interrupted pull goes on where it stopped.")]
pub(crate) struct PullArguments {
    /// A repository on the Hugging Face hub (owner/name), `starter`, or a speech model such as `whisper-base`
    model: String,
    /// A branch, tag or commit of the repository [default: main]
    #[arg(long)]
    revision: Option<String>,
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
    let pull = StorePull {
        store: Store::from_environment()?,
        target: target(arguments),
        options: arguments.conversion.options(),
    };
    // Before the hub is looked at: what is here needs no network and no settings for it.
    if let Some(entry) = pull.already_here()? {
        return already_here(entry, arguments.json);
    }
    match download(&pull)? {
        StorePulled::AlreadyHere(entry) => already_here(entry, arguments.json),
        StorePulled::Imported(imported) => tell(&imported, arguments.json),
    }
}

/// What to pull; models known by a word have no revisions and files to choose from.
fn target(arguments: &PullArguments) -> PullTarget {
    let mut target = PullTarget::named(&arguments.model);
    match &mut target {
        PullTarget::Starter | PullTarget::Speech(_) => {
            if arguments.revision.is_some() || arguments.gguf.is_some() {
                let text = "--revision and --gguf are for repositories of the hub; the starter and models known by a word have one form";
                Arguments::command().error(ErrorKind::ArgumentConflict, text).exit();
            }
        }
        PullTarget::Repository(request) => {
            if let Some(revision) = &arguments.revision {
                request.revision.clone_from(revision);
            }
            if let Some(gguf) = &arguments.gguf {
                request.selection = FileSelection::Gguf(gguf.clone());
            }
        }
    }
    target
}

fn already_here(entry: ModelEntry, json: bool) -> anyhow::Result<Exit> {
    if let Some(problem) = entry.problem {
        let problem = format!("{problem} (`linnet pull --force` fetches it again)");
        return Err(ChoiceError::Unusable { name: entry.name, problem }.into());
    }
    if json {
        output::json(&serde_json::json!({ "entry": entry, "notes": ["it was already here"] }))?;
    } else {
        output::line(&format!("{} is already here; --force fetches it again", entry.name))?;
    }
    Ok(Exit::Done)
}

/// Pulls with a progress bar; Ctrl-C ends the process, and what came is kept.
fn download(pull: &StorePull) -> anyhow::Result<StorePulled> {
    let hub = HubClient::from_environment()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the download threads")?;
    let report = Report::new();
    let listener: StorePullListener = Arc::new(move |progress| match progress {
        StorePullProgress::Downloading(progress) => report.pull(progress),
        StorePullProgress::Importing(progress) => report.import(progress),
    });
    Ok(runtime.block_on(pull.run(&hub, &listener))?)
}
