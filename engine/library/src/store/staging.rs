//! Models under way: made in a hidden folder, renamed when complete, swept away when their process is gone.
//!
//! Each folder `.staging-<id>` has a file `.staging-<id>.lock` beside it, which its process keeps locked; the system
//! lets go of the lock when the process ends, however it ends. `.lock` guards the few steps that several processes
//! must not take at once: making such a pair, sweeping, and renaming into place.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Store, check_name};
use crate::disk;
use crate::error::{IoContext as _, LibraryError};

const PREFIX: &str = ".staging-";
const LOCK_SUFFIX: &str = ".lock";

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
        lock.lock().at("lock", &lock_path)?;
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
    // Some file systems (network shares) cannot exchange: the old model waits inside the new one's parent.
    let aside = new.with_extension("old");
    fs::rename(old, &aside).at("rename", old)?;
    if let Err(error) = fs::rename(new, old).at("rename", new) {
        fs::rename(&aside, old).at("rename", &aside)?;
        return Err(error);
    }
    fs::rename(&aside, new).at("rename", &aside)
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
    file.lock().at("lock", &path)?;
    Ok(file)
}

fn remove_if_there(path: &Path) -> Result<(), LibraryError> {
    let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
    if metadata.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.at("remove", path)
}

/// Removes the staging folders whose process is gone.
pub(super) fn sweep(models: &Path) -> Result<(), LibraryError> {
    let mut left = Vec::new();
    for entry in fs::read_dir(models).at("list", models)? {
        let path = entry.at("list", models)?.path();
        if disk::file_name_text(&path).starts_with(PREFIX) {
            left.push(path);
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    let _guard = guard(models)?;
    for path in left {
        let folder = match path.to_str().and_then(|text| text.strip_suffix(LOCK_SUFFIX)) {
            Some(folder) => PathBuf::from(folder),
            None => path,
        };
        let lock_path = lock_of(&folder);
        let lock = open_lock(&lock_path)?;
        match lock.try_lock() {
            Ok(()) => {
                remove_if_there(&folder)?;
                remove_if_there(&lock_path)?;
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(LibraryError::io("lock", &lock_path, error)),
        }
    }
    Ok(())
}
