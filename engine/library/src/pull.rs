//! One model from the hub into one folder.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};

use crate::PullError;
use crate::blocking::blocking;
use crate::free_space::require_space;
use crate::hub::{
    BlobHash, BlobPaths, ChosenFiles, FileSelection, HubClient, RemoteFile, RepositoryListing, WORK_FOLDER,
    choose_files, download_file, hash_matches, partial_length, sweep_work_folder, wait_for_lock,
};
use crate::pull_progress::{FileReporter, ProgressBoard, PullProgress};
use crate::store::Origin;

/// The branch that is taken when no revision is named.
const DEFAULT_REVISION: &str = "main";

/// Name of the record of what an unfinished pull put into its target.
const PLAN_FILE: &str = "plan.json";

/// What to pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequest {
    /// The repository, `owner/name`.
    pub id: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Which of its files.
    pub selection: FileSelection,
}

impl PullRequest {
    /// The model of repository `id` on its main branch.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), revision: DEFAULT_REVISION.to_owned(), selection: FileSelection::Model }
    }

    /// A folder name that is this request's own, for the target among other downloads. The same request always gets
    /// the same one, so that it finds what an earlier run left.
    pub fn folder_name(&self) -> String {
        let mut name = format!("{}@{}", self.id, self.revision);
        if let FileSelection::Gguf(wanted) = &self.selection {
            name = format!("{name}+{wanted}");
        }
        // Hub names hold no `--`, so this joins them without making two the same.
        let name = name.replace('/', "--");
        name.chars().map(|c| if c.is_alphanumeric() || "-_.@+".contains(c) { c } else { '_' }).collect()
    }
}

/// A finished pull.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// The repository.
    pub id: String,
    /// The commit the files are of.
    pub commit: String,
    /// The files, in the order of the listing.
    pub files: Vec<PulledFile>,
    /// Bytes of all files.
    pub bytes: u64,
    /// The GGUF file (the first part of a split one), where that is what the repository gave; else the target is a
    /// model folder.
    pub gguf: Option<PathBuf>,
}

impl Pulled {
    /// Where the files came from.
    pub fn origin(&self) -> Origin {
        Origin::Hub {
            repository: self.id.clone(),
            revision: self.commit.clone(),
            file: self.gguf.is_some().then(|| self.files.first().map(|file| file.name.clone())).flatten(),
        }
    }
}

/// One file that a pull brought.
#[derive(Clone, Debug, PartialEq)]
pub struct PulledFile {
    /// Name inside the repository and below the target.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// The hash its content was checked against; `None` where the hub or mirror tells none, so only the size was.
    pub hash: Option<BlobHash>,
}

/// Pulls a model into the folder `target`, which should belong to this repository alone: an interrupted pull is gone
/// on with by pulling into the same target. Files get their names only when they are complete and verified. Several
/// pulls into one target, in this process or others, share the work: each blob is downloaded once.
///
/// # Errors
/// See [`PullError`]; whatever happens, the bytes that came are kept, except those proved wrong.
pub async fn pull(
    hub: &HubClient,
    request: &PullRequest,
    target: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
) -> Result<Pulled, PullError> {
    let (listing, chosen) = choose(hub, request, progress).await?;
    pull_files(hub, &listing, &chosen, target, progress).await
}

/// What a request means: the repository's listing, and which of its files are the model.
pub(crate) async fn choose(
    hub: &HubClient,
    request: &PullRequest,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
) -> Result<(RepositoryListing, ChosenFiles), PullError> {
    let tell_pause = |pause: Duration, reason: &str| {
        let note = format!("{reason} Trying again in {} s.", pause.as_secs_f32().ceil());
        progress(&PullProgress { note: Some(note), ..PullProgress::default() });
    };
    let listing = hub.list_patiently(&request.id, &request.revision, &tell_pause).await?;
    let chosen = choose_files(&listing, &request.selection)?;
    Ok((listing, chosen))
}

/// Downloads one file ahead of the others, which [`pull_files`] then finds there.
pub(crate) async fn pull_ahead(
    hub: &HubClient,
    listing: &RepositoryListing,
    file: &RemoteFile,
    target: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
) -> Result<(), PullError> {
    std::fs::create_dir_all(target).map_err(|error| PullError::io("create", target, error))?;
    let board = ProgressBoard::new(progress, [(file.name.clone(), file.size.unwrap_or(0))]);
    Box::pin(download_file(hub, listing, file, target, board.file(0))).await.map(drop)
}

/// Pulls files chosen from a listing; see [`pull`].
///
/// # Errors
/// As [`pull`].
pub async fn pull_files(
    hub: &HubClient,
    listing: &RepositoryListing,
    chosen: &ChosenFiles,
    target: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
) -> Result<Pulled, PullError> {
    let files = chosen.files();
    refuse_clashing_names(files)?;
    require_space(target, bytes_missing(files, target))?;
    std::fs::create_dir_all(target).map_err(|error| PullError::io("create", target, error))?;
    replace_plan(target, files)?;

    let board = ProgressBoard::new(progress, files.iter().map(|file| (file.name.clone(), file.size.unwrap_or(0))));
    let groups = group_by_content(files);
    let fetched: Vec<Vec<(usize, PulledFile)>> = stream::iter(groups)
        .map(|group| fetch_group(hub, listing, files, group, target, &board))
        .buffer_unordered(hub.options().parallel_files.max(1))
        .try_collect()
        .await?;
    sweep(target);

    let mut fetched: Vec<(usize, PulledFile)> = fetched.into_iter().flatten().collect();
    fetched.sort_by_key(|(index, _)| *index);
    let pulled: Vec<PulledFile> = fetched.into_iter().map(|(_, file)| file).collect();
    let gguf = match chosen {
        ChosenFiles::Folder(_) => None,
        ChosenFiles::Gguf(parts) => parts.first().map(|part| target.join(&part.name)),
    };
    let bytes = pulled.iter().map(|file| file.size).sum();
    Ok(Pulled { id: listing.id.clone(), commit: listing.commit.clone(), files: pulled, bytes, gguf })
}

/// Downloads the first of some files with the same content, and copies it to the others' names.
async fn fetch_group(
    hub: &HubClient,
    listing: &RepositoryListing,
    files: &[RemoteFile],
    group: Vec<usize>,
    target: &Path,
    board: &ProgressBoard<'_>,
) -> Result<Vec<(usize, PulledFile)>, PullError> {
    let mut fetched = Vec::with_capacity(group.len());
    let Some((&first, others)) = group.split_first() else { return Ok(fetched) };
    let file = &files[first];
    let (size, hash) = Box::pin(download_file(hub, listing, file, target, board.file(first))).await?;
    fetched.push((first, PulledFile { name: file.name.clone(), size, hash }));
    for &other in others {
        let name = files[other].name.clone();
        copy_within(target, &file.name, &name, size, hash, board.file(other)).await?;
        fetched.push((other, PulledFile { name, size, hash }));
    }
    Ok(fetched)
}

async fn copy_within(
    target: &Path,
    from: &str,
    to: &str,
    size: u64,
    hash: Option<BlobHash>,
    report: FileReporter<'_>,
) -> Result<(), PullError> {
    let (source, place) = (target.join(from), target.join(to));
    // A copy is a blob of its own, so that its unfinished file has an owner and is swept like all others.
    let paths = BlobPaths::new(target, to, None);
    let lock = wait_for_lock(&paths, report).await?;
    let copied = blocking(move || {
        let _owned = lock;
        if let Some(hash) = hash
            && hash_matches(&place, size, &hash).map_err(|error| PullError::io("read", &place, error))?
        {
            return Ok(());
        }
        if let Some(folder) = place.parent() {
            std::fs::create_dir_all(folder).map_err(|error| PullError::io("create", folder, error))?;
        }
        std::fs::copy(&source, &paths.partial).map_err(|error| PullError::io("write", &paths.partial, error))?;
        std::fs::rename(&paths.partial, &place).map_err(|error| PullError::io("create", &place, error))
    });
    copied.await?;
    report.done();
    Ok(())
}

/// Indexes of files, those of the same content together.
fn group_by_content(files: &[RemoteFile]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of: HashMap<BlobHash, usize> = HashMap::new();
    for (index, file) in files.iter().enumerate() {
        match file.hash.and_then(|hash| group_of.get(&hash).copied()) {
            Some(group) => groups[group].push(index),
            None => {
                if let Some(hash) = file.hash {
                    group_of.insert(hash, groups.len());
                }
                groups.push(vec![index]);
            }
        }
    }
    groups
}

/// Two names that a file system without upper and lower case (the usual one on a Mac) takes for one.
fn refuse_clashing_names(files: &[RemoteFile]) -> Result<(), PullError> {
    let mut seen = HashMap::new();
    for file in files {
        if seen.insert(file.name.to_lowercase(), &file.name).is_some() {
            let reason = "another name differs from it only in upper and lower case";
            return Err(PullError::UnsafeName { name: file.name.clone(), reason });
        }
    }
    Ok(())
}

/// Bytes that are still to be written: what is there under its final name or as a partial does not count.
pub(crate) fn bytes_missing(files: &[RemoteFile], target: &Path) -> u64 {
    let missing = files.iter().map(|file| {
        let size = file.size.unwrap_or(0);
        if target.join(&file.name).metadata().is_ok_and(|facts| facts.len() == size) {
            return 0;
        }
        size.saturating_sub(partial_length(target, &file.name, file.hash.as_ref()))
    });
    missing.fold(0, u64::saturating_add)
}

/// Writes down which files this pull puts into the target, and removes those that an unfinished pull of another
/// commit put there and this one does not have: a stale shard beside new ones would make a broken model.
fn replace_plan(target: &Path, files: &[RemoteFile]) -> Result<(), PullError> {
    let folder = target.join(WORK_FOLDER);
    let path = folder.join(PLAN_FILE);
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let before: Vec<String> =
        std::fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    for stale in before.iter().filter(|name| !names.contains(&name.as_str())) {
        if crate::hub::check_file_name(stale).is_ok() {
            let _ = std::fs::remove_file(target.join(stale));
        }
    }
    let plan = serde_json::json!(names).to_string();
    loop {
        std::fs::create_dir_all(&folder).map_err(|error| PullError::io("create", &folder, error))?;
        match std::fs::write(&path, &plan) {
            Ok(()) => return Ok(()),
            // Another pull into this target finished in between and took its empty folder away.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(PullError::io("write", &path, error)),
        }
    }
}

/// Leaves only the model's own files in the target.
fn sweep(target: &Path) {
    let _ = std::fs::remove_file(target.join(WORK_FOLDER).join(PLAN_FILE));
    sweep_work_folder(target);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, hash: Option<BlobHash>) -> RemoteFile {
        RemoteFile { name: name.into(), size: Some(1), hash }
    }

    #[test]
    fn files_of_the_same_content_form_one_group() {
        let (one, two) = (Some(BlobHash::GitSha1([1; 20])), Some(BlobHash::GitSha1([2; 20])));
        let files = [file("a", one), file("b", two), file("c", one), file("d", None), file("e", None)];
        assert_eq!(group_by_content(&files), [vec![0, 2], vec![1], vec![3], vec![4]]);
    }

    #[test]
    fn each_request_has_a_folder_name_of_its_own() {
        let plain = PullRequest::new("maker/tiny-model");
        assert_eq!(plain.folder_name(), "maker--tiny-model@main");
        let named = PullRequest {
            revision: "refs/pr/1".into(),
            selection: FileSelection::Gguf("a\\b: Q8_0.gguf".into()),
            ..plain
        };
        assert_eq!(named.folder_name(), "maker--tiny-model@refs--pr--1+a_b__Q8_0.gguf");
    }

    #[test]
    fn names_that_clash_on_a_mac_are_refused() {
        assert!(refuse_clashing_names(&[file("Config.json", None), file("config.json", None)]).is_err());
        refuse_clashing_names(&[file("a", None), file("b", None)]).unwrap();
    }

    #[test]
    fn a_stale_shard_of_another_commit_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path();
        replace_plan(target, &[file("old.safetensors", None), file("kept.json", None)]).unwrap();
        for name in ["old.safetensors", "kept.json", "the user's own.txt"] {
            std::fs::write(target.join(name), "x").unwrap();
        }
        replace_plan(target, &[file("kept.json", None), file("new.safetensors", None)]).unwrap();
        assert!(!target.join("old.safetensors").exists());
        assert!(target.join("kept.json").exists() && target.join("the user's own.txt").exists());
    }
}
