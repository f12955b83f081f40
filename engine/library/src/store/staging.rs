//! Models under way: made in a hidden folder, renamed when complete, swept away when their process is gone.
//!
//! Each folder `.staging-<id>` has a file `.staging-<id>.lock` beside it, which its process keeps locked; the system
//! lets go of the lock when the process ends, however it ends. `.lock` guards the few steps that several processes
//! must not take at once: making such a pair, sweeping, and renaming into place.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Store, check_name};
use crate::disk;
use crate::error::{IoContext as _, LibraryError};

const PREFIX: &str = ".staging-";
const LOCK_SUFFIX: &str = ".lock";
const ASIDE_PREFIX: &str = ".replaced-";

/// A model that is being made. Dropping it removes what was made.
#[derive(Debug)]
pub struct Staging {
    store: Store,
    folder: PathBuf,
    lock_path: PathBuf,
    /// Held until this is dropped.
    _lock: File,
}

impl Staging {
    pub(super) fn create(store: &Store) -> Result<Self, LibraryError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let _guard = guard(&store.models)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = store.models.join(format!("{PREFIX}{}-{number}", std::process::id()));
        let lock_path = lock_of(&folder);
        let lock = open_lock(&lock_path)?;
        tolerate_no_locks(lock.lock()).at("lock", &lock_path)?;
        // The process id may have been used before, by a process that left something.
        remove_if_there(&folder)?;
        fs::create_dir(&folder).at("make", &folder)?;
        Ok(Staging { store: store.clone(), folder, lock_path, _lock: lock })
    }

    /// The folder to write into.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Makes everything durable and renames the folder to the model's place.
    ///
    /// # Errors
    /// [`LibraryError::NameTaken`] when the name is taken and `replace` is not set; otherwise when the system refuses.
    /// What was staged is then removed.
    pub fn commit(self, name: &str, replace: bool) -> Result<PathBuf, LibraryError> {
        check_name(name)?;
        disk::sync_tree(&self.folder)?;
        let _guard = guard(&self.store.models)?;
        self.store.check_free(name, replace)?;
        let target = self.store.models.join(name);
        let parent = target.parent().unwrap_or(&self.store.models).to_owned();
        fs::create_dir_all(&parent).at("make", &parent)?;
        if target.symlink_metadata().is_ok() {
            swap(&self.folder, &target)?;
        } else {
            fs::rename(&self.folder, &target).at("rename", &self.folder)?;
        }
        disk::sync_folder(&parent)?;
        disk::sync_folder(&self.store.models)?;
        Ok(target)
    }

    /// Removes what was staged, and says so if that fails.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn discard(self) -> Result<(), LibraryError> {
        remove_if_there(&self.folder)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a commit with replacement this is the old model. A failure leaves it to the next sweep.
        let _ = remove_if_there(&self.folder);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Puts `new` in the place of `old` and `old` in the place of `new`, at once where the system can.
fn swap(new: &Path, old: &Path) -> Result<(), LibraryError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE).is_ok() {
        return Ok(());
    }
    swap_by_renames(new, old)
}

/// For file systems that cannot exchange (network shares): the old model is set aside under a hidden name, from which
/// the next sweep brings it back if the process dies before the new one is in place.
fn swap_by_renames(new: &Path, old: &Path) -> Result<(), LibraryError> {
    let aside = old.with_file_name(format!("{ASIDE_PREFIX}{}", disk::file_name_text(old)));
    remove_if_there(&aside)?;
    fs::rename(old, &aside).at("rename", old)?;
    if let Err(error) = fs::rename(new, old).at("rename", new) {
        fs::rename(&aside, old).at("rename", &aside)?;
        return Err(error);
    }
    remove_if_there(&aside)
}

/// Models that a dead process had set aside: brought back, or removed where the new one is in place.
fn bring_back(aside: &Path) -> Result<(), LibraryError> {
    let name = disk::file_name_text(aside);
    let Some(name) = name.strip_prefix(ASIDE_PREFIX) else { return Ok(()) };
    let place = aside.with_file_name(name);
    if place.symlink_metadata().is_ok() {
        remove_if_there(aside)
    } else {
        fs::rename(aside, &place).at("rename", aside)
    }
}

/// What lies directly in a folder under a name with this beginning.
fn entries_with(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>, LibraryError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).at("list", folder)? {
        let path = entry.at("list", folder)?.path();
        if disk::file_name_text(&path).starts_with(prefix) {
            found.push(path);
        }
    }
    Ok(found)
}

fn lock_of(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(LOCK_SUFFIX);
    PathBuf::from(name)
}

fn open_lock(path: &Path) -> Result<File, LibraryError> {
    OpenOptions::new().create(true).truncate(false).write(true).open(path).at("open", path)
}

/// Waits until no other process makes, sweeps or renames; lasts until dropped.
fn guard(models: &Path) -> Result<File, LibraryError> {
    let path = models.join(LOCK_SUFFIX);
    let file = open_lock(&path)?;
    tolerate_no_locks(file.lock()).at("lock", &path)?;
    Ok(file)
}

/// Some network file systems have no locks. Models can be kept there all the same, by one process at a time.
fn tolerate_no_locks(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        outcome => outcome,
    }
}

/// Whether what a lock belongs to has been left by a process that is gone. Without locks nobody knows, so it has not.
fn is_left(outcome: Result<(), TryLockError>) -> io::Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => tolerate_no_locks(Err(error)).map(|()| false),
    }
}

fn remove_if_there(path: &Path) -> Result<(), LibraryError> {
    let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
    if metadata.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.at("remove", path)
}

/// Removes the staging folders whose process is gone, and brings back what it had set aside.
pub(super) fn sweep(models: &Path) -> Result<(), LibraryError> {
    let left = entries_with(models, PREFIX)?;
    let mut aside = entries_with(models, ASIDE_PREFIX)?;
    for organisation in super::visible_folders(models)? {
        aside.extend(entries_with(&organisation, ASIDE_PREFIX).unwrap_or_default());
    }
    if left.is_empty() && aside.is_empty() {
        return Ok(());
    }
    let _guard = guard(models)?;
    // Whoever sets something aside holds the guard until it is done: what is seen now belongs to the dead.
    for path in aside.iter().filter(|path| path.exists()) {
        bring_back(path)?;
    }
    for path in left {
        let folder = match path.to_str().and_then(|text| text.strip_suffix(LOCK_SUFFIX)) {
            Some(folder) => PathBuf::from(folder),
            None => path,
        };
        let lock_path = lock_of(&folder);
        let lock = open_lock(&lock_path)?;
        if is_left(lock.try_lock()).at("lock", &lock_path)? {
            remove_if_there(&folder)?;
            remove_if_there(&lock_path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_without_exchange_leaves_only_the_new_model() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join(".staging-1-0"), folder.path().join("model"));
        for (path, text) in [(&new, "new"), (&old, "old")] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("text"), text).unwrap();
        }
        swap_by_renames(&new, &old).unwrap();
        assert_eq!(fs::read_to_string(old.join("text")).unwrap(), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_system_without_locks_holds_models_and_nothing_on_it_is_swept() {
        let refusal = |kind| io::Error::from(kind);
        assert!(tolerate_no_locks(Err(refusal(io::ErrorKind::Unsupported))).is_ok());
        assert!(tolerate_no_locks(Err(refusal(io::ErrorKind::PermissionDenied))).is_err());
        // What may belong to a living process stays.
        assert!(!is_left(Err(TryLockError::Error(refusal(io::ErrorKind::Unsupported)))).unwrap());
        assert!(!is_left(Err(TryLockError::WouldBlock)).unwrap());
        assert!(is_left(Ok(())).unwrap());
        assert!(is_left(Err(TryLockError::Error(refusal(io::ErrorKind::PermissionDenied)))).is_err());
    }

    #[test]
    fn a_model_set_aside_by_a_dead_process_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        for path in [".replaced-a", "org/.replaced-b", ".replaced-c", "c"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        fs::write(folder.path().join("c/text"), "new").unwrap();
        sweep(folder.path()).unwrap();
        assert!(folder.path().join("a").is_dir() && folder.path().join("org/b").is_dir());
        assert!(folder.path().join("c/text").is_file());
        assert!(!folder.path().join(".replaced-c").exists());
    }
}
