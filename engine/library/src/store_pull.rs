//! From a model's name to a model of the store: downloaded, imported, and the download removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::affine::Affine;
use crate::blocking::blocking;
use crate::config::CONFIG_NAME;
use crate::error::LibraryError;
use crate::free_space::require_space;
use crate::hub::{BlobLock, ChosenFiles, HubClient, RepositoryListing};
use crate::import::folder::check_config;
use crate::import::{ImportOptions, Imported, Progress, import};
use crate::pull::{PullRequest, bytes_missing, choose, pull_ahead, pull_files};
use crate::pull_error::PullError;
use crate::pull_progress::PullProgress;
use crate::speech_models::SpeechModel;
use crate::starter::{STARTER, STARTER_NAME, STARTER_SAMPLING, fetch_starter};
use crate::store::{ModelEntry, Origin, Store};
use crate::tokenizer_files;

/// Folder below Linnet's home where downloads lie until they are imported.
const DOWNLOADS: &str = "downloads";

/// How the address of a repository's page begins, as people copy it.
const PAGES: [&str; 3] = ["https://huggingface.co/", "huggingface.co/", "https://hf.co/"];

/// Time between two looks at a lock that another has.
const LOCK_POLL: Duration = Duration::from_millis(200);

/// What the starter is quantized to when it comes from the hub in bf16: a model this small loses too much at 4 bits.
const STARTER_AFFINE: Affine = Affine { bits: 8, group_size: 64 };

/// A model that can be pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullTarget {
    /// The starter model, from wherever it can be had.
    Starter,
    /// A speech model that is known by a word.
    Speech(&'static SpeechModel),
    /// A repository of the hub.
    Repository(PullRequest),
}

impl PullTarget {
    /// What a name means: `starter`, a speech model's word such as `whisper-tiny.en`, or else a repository on its main branch, also by its page's address.
    pub fn named(model: &str) -> Self {
        if model == STARTER {
            return Self::Starter;
        }
        if let Some(speech) = SpeechModel::find(model) {
            return Self::Speech(speech);
        }
        let page = PAGES.iter().find_map(|page| model.strip_prefix(page));
        Self::Repository(PullRequest::new(page.map_or(model, |rest| rest.trim_end_matches('/'))))
    }

    /// The model's name in the store where the user gives none.
    pub fn default_name(&self) -> &str {
        match self {
            Self::Starter => STARTER_NAME,
            Self::Speech(speech) => speech.name,
            Self::Repository(request) => &request.id,
        }
    }

    /// The name of a folder that is this target's own, so that an interrupted pull finds its bytes again.
    fn folder_name(&self) -> String {
        match self {
            Self::Starter => STARTER_NAME.to_owned(),
            Self::Speech(speech) => speech.name.to_owned(),
            Self::Repository(request) => request.folder_name(),
        }
    }
}

/// Why a pull into the store did not finish.
#[derive(Debug, thiserror::Error)]
pub enum StorePullError {
    /// The download failed.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The import or the store refused.
    #[error(transparent)]
    Library(#[from] LibraryError),
}

/// What a pull into the store is doing.
#[derive(Clone, Copy, Debug)]
pub enum StorePullProgress<'a> {
    /// Files are coming.
    Downloading(&'a PullProgress),
    /// What came is imported.
    Importing(&'a Progress),
}

/// Hears about progress; called from several threads, so let it be quick.
pub type StorePullListener = Arc<dyn Fn(StorePullProgress<'_>) + Send + Sync>;

/// A pull that has finished.
#[derive(Clone, Debug, PartialEq)]
pub enum StorePulled {
    /// A model of that name was in the store before; nothing was done.
    AlreadyHere(ModelEntry),
    /// The model is in the store now.
    Imported(Imported),
}

/// A pull of a model into the store.
#[derive(Clone, Debug)]
pub struct StorePull {
    /// Where the model goes.
    pub store: Store,
    /// What is pulled.
    pub target: PullTarget,
    /// How it is imported. `origin` is filled in, and so are the starter's quantization and sampling where not given.
    pub options: ImportOptions<'static>,
}

/// A download that can be imported.
struct Download {
    path: PathBuf,
    origin: Origin,
}

impl StorePull {
    /// The name that the model will have.
    pub fn name(&self) -> &str {
        self.options.name.as_deref().unwrap_or(self.target.default_name())
    }

    /// The model of that name, if it is there and would not be replaced.
    ///
    /// # Errors
    /// [`LibraryError::InvalidName`], or [`LibraryError::NotAModel`] and [`LibraryError::NameTaken`] where no model can
    /// have that place: before anything is downloaded.
    pub fn already_here(&self) -> Result<Option<ModelEntry>, LibraryError> {
        let path = self.store.path_of(self.name())?;
        self.store.check_free(self.name(), true)?;
        let is_here = !self.options.replace && path.exists();
        Ok(is_here.then(|| ModelEntry::read(self.name(), &path)))
    }

    /// Downloads, imports, and removes the download. A second pull of the same target waits for the first, in whatever
    /// process, and then finds the model there. Dropping the future stops a download, which the next pull goes on
    /// with; an import that has begun runs to its end.
    ///
    /// # Errors
    /// As [`pull`], [`fetch_starter`] and [`import`].
    pub async fn run(&self, hub: &HubClient, listener: &StorePullListener) -> Result<StorePulled, StorePullError> {
        if let Some(entry) = self.already_here()? {
            return Ok(StorePulled::AlreadyHere(entry));
        }
        let downloads = self.store.home().join(DOWNLOADS);
        let folder = downloads.join(self.target.folder_name());
        let lock_path = downloads.join(format!("{}.lock", self.target.folder_name()));
        let lock = self.wait_for(&lock_path, listener).await?;
        // Whoever had the lock may have brought it.
        let pulled = match self.already_here()? {
            Some(entry) => Ok(StorePulled::AlreadyHere(entry)),
            None => self.bring(hub, &folder, listener).await.map(StorePulled::Imported),
        };
        // Removed while it is held: who waits sees that its file is gone and takes a new one.
        let _ = fs::remove_file(&lock_path);
        drop(lock);
        // Fails while another download is in it, which is right.
        let _ = fs::remove_dir(&downloads);
        pulled
    }

    async fn bring(
        &self,
        hub: &HubClient,
        folder: &Path,
        listener: &StorePullListener,
    ) -> Result<Imported, StorePullError> {
        let brought = async {
            let download = self.download(hub, folder, listener).await?;
            Ok::<_, StorePullError>(self.import(download, listener).await?)
        };
        let mut imported = match brought.await {
            Ok(imported) => imported,
            Err(error) => {
                // No later pull could use what came; nothing else would ever remove it.
                if matches!(&error, StorePullError::Library(error) if error.is_about_the_model()) {
                    let _ = fs::remove_dir_all(folder);
                }
                return Err(error);
            }
        };
        if let Err(error) = fs::remove_dir_all(folder) {
            let left = format!("{} is no longer needed but could not be removed: {error}", folder.display());
            imported.notes.push(left);
        }
        Ok(imported)
    }

    async fn download(
        &self,
        hub: &HubClient,
        folder: &Path,
        listener: &StorePullListener,
    ) -> Result<Download, StorePullError> {
        let tell = |progress: &PullProgress| listener(StorePullProgress::Downloading(progress));
        match &self.target {
            PullTarget::Starter => {
                let source = fetch_starter(hub, folder, &tell).await?;
                Ok(Download { path: source.path, origin: source.origin })
            }
            PullTarget::Speech(speech) => {
                let (path, origin) = speech.fetch(hub, folder, &tell).await?;
                Ok(Download { path, origin })
            }
            PullTarget::Repository(request) => {
                let (listing, chosen) = choose(hub, request, &tell).await?;
                check_names(&listing, &chosen)?;
                // The import writes the weights a second time before the download goes.
                let imported = imported_bytes(&chosen, self.options.quantize);
                require_space(folder, bytes_missing(chosen.files(), folder).saturating_add(imported))?;
                if let Some(config) = chosen.files().iter().find(|file| file.name == CONFIG_NAME) {
                    pull_ahead(hub, &listing, config, folder, &tell).await?;
                    check_config(folder, &self.options)?;
                }
                let pulled = pull_files(hub, &listing, &chosen, folder, &tell).await?;
                let origin = pulled.origin();
                Ok(Download { path: pulled.gguf.unwrap_or_else(|| folder.to_owned()), origin })
            }
        }
    }

    async fn import(&self, download: Download, listener: &StorePullListener) -> Result<Imported, LibraryError> {
        let (store, listener, path) = (self.store.clone(), Arc::clone(listener), download.path.clone());
        let options = self.import_options(download.origin);
        let work = move || {
            import(&store, &download.path, &options, &mut |progress| listener(StorePullProgress::Importing(&progress)))
        };
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(LibraryError::io("finish the import of", &path, io::Error::other(error))))
    }

    fn import_options(&self, origin: Origin) -> ImportOptions<'static> {
        let mut options = ImportOptions { name: Some(self.name().to_owned()), ..self.options.clone() };
        if self.target == PullTarget::Starter {
            options.sampling = options.sampling.or(Some(STARTER_SAMPLING));
            if matches!(origin, Origin::Hub { .. }) {
                options.quantize = options.quantize.or(Some(STARTER_AFFINE));
            }
        }
        options.origin = Some(origin);
        options
    }

    async fn wait_for(&self, lock: &Path, listener: &StorePullListener) -> Result<BlobLock, PullError> {
        let mut told = false;
        loop {
            let path = lock.to_owned();
            if let Some(lock) = blocking(move || BlobLock::try_acquire(&path)).await? {
                return Ok(lock);
            }
            if !told {
                let other = BlobLock::owner(lock).map_or_else(String::new, |process| format!(" (process {process})"));
                let note = format!("Another program{other} pulls {} already; waiting for it.", self.name());
                listener(StorePullProgress::Downloading(&PullProgress { note: Some(note), ..PullProgress::default() }));
                told = true;
            }
            tokio::time::sleep(LOCK_POLL).await;
        }
    }
}

/// Refuses what the names of the files alone decide.
fn check_names(listing: &RepositoryListing, chosen: &ChosenFiles) -> Result<(), LibraryError> {
    let path = PathBuf::from(&listing.id);
    match chosen {
        ChosenFiles::Folder(files) => tokenizer_files::check_names(|name| files.iter().any(|file| file.name == name))
            .map_err(|reason| LibraryError::Tokenizer { path, reason }),
        ChosenFiles::Gguf(parts) if parts.len() > 1 => Err(LibraryError::UnsupportedFeature {
            path,
            feature: format!("a division of its GGUF file into {} files", parts.len()),
            remedy: "fetch them, join them with llama-gguf-split --merge, and import the result".into(),
        }),
        ChosenFiles::Gguf(_) => Ok(()),
    }
}

/// About how many bytes the weights take after an import. A GGUF file's stay as many; scales that 16 bits cannot hold
/// make some larger, which the import itself finds out.
fn imported_bytes(chosen: &ChosenFiles, quantize: Option<Affine>) -> u64 {
    const DENSE_BITS: u64 = 16;
    let weights =
        chosen.files().iter().filter(|file| file.name.ends_with(".safetensors") || file.name.ends_with(".gguf"));
    let bytes = weights.map(|file| file.size.unwrap_or(0)).fold(0, u64::saturating_add);
    match (chosen, quantize) {
        (ChosenFiles::Folder(_), Some(affine)) => bytes / DENSE_BITS * u64::from(affine.bits),
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::SuggestedSampling;

    fn options_for(target: PullTarget, origin: Origin) -> ImportOptions<'static> {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        StorePull { store, target, options: ImportOptions::default() }.import_options(origin)
    }

    fn package() -> Origin {
        Origin::Package { name: "p".into(), version: "1".into() }
    }

    #[test]
    fn the_address_of_a_repositorys_page_means_the_repository() {
        for name in ["a/b", "https://huggingface.co/a/b", "https://hf.co/a/b/", "huggingface.co/a/b"] {
            assert_eq!(PullTarget::named(name), PullTarget::Repository(PullRequest::new("a/b")), "{name}");
        }
        assert_eq!(PullTarget::named("starter"), PullTarget::Starter);
    }

    #[test]
    fn the_starter_is_sampled_as_its_makers_say_wherever_it_came_from() {
        let hub = Origin::Hub { repository: "a/b".into(), revision: "c".into(), file: None };
        for (origin, quantize) in [(package(), None), (hub, Some(STARTER_AFFINE))] {
            let options = options_for(PullTarget::Starter, origin.clone());
            assert_eq!(options.name.as_deref(), Some(STARTER_NAME));
            assert_eq!(options.sampling, Some(SuggestedSampling { temperature: 0.2, top_p: 0.9 }));
            assert_eq!((options.quantize, options.origin), (quantize, Some(origin)));
        }
        assert_eq!(options_for(PullTarget::named("a/b"), package()).sampling, None);
    }
}
