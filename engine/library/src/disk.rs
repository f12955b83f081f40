//! The few things asked of the file system: free space, durable writes, sizes.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{IoContext as _, LibraryError};
use crate::free_space::{self, Shortage, available_space};

/// What the Finder leaves in folders that somebody looked at.
pub(crate) const FINDER_NOTE: &str = ".DS_Store";

/// Bytes that an ordinary user may still write below `folder`.
pub(crate) fn free_space(folder: &Path) -> Result<u64, LibraryError> {
    available_space(folder).at("ask for the free space of", folder)
}

/// Refuses when `bytes` do not fit below `folder` beside what shall stay free.
pub(crate) fn check_free_space(folder: &Path, bytes: u64) -> Result<(), LibraryError> {
    free_space::decide(bytes, free_space(folder)?).map_err(|Shortage { needed, available }| LibraryError::DiskSpace {
        path: folder.to_owned(),
        needed,
        available,
    })
}

/// Makes a file's (or an open folder's) content durable.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    sync_by(|| file.sync_all(), || Ok(rustix::fs::fsync(file)?))
}

/// On macOS, `sync_all` has the drive flush its own cache too, which exFAT drives and network shares refuse; the plain
/// sync is then all there is. (Elsewhere both are the same call.)
fn sync_by(with_drive: impl FnOnce() -> io::Result<()>, plain: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match with_drive() {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOTSUP | Errno::NOTTY | Errno::INVAL)) => {
            plain()
        }
        outcome => outcome,
    }
}

/// Makes a folder's entries durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), LibraryError> {
    File::open(folder).and_then(|file| sync(&file)).at("sync", folder)
}

/// Makes every file of a (flat or nested) folder durable, then the folder itself.
pub(crate) fn sync_tree(folder: &Path) -> Result<(), LibraryError> {
    for entry in fs::read_dir(folder).at("list", folder)? {
        let entry = entry.at("list", folder)?;
        let kind = entry.file_type().at("read", &entry.path())?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path()).and_then(|file| sync(&file)).at("sync", &entry.path())?;
        }
    }
    sync_folder(folder)
}

/// Bytes of all files in a folder. Links to files count with the file's size (a hub cache consists of them); links to
/// folders are not followed, so a loop cannot catch us.
pub(crate) fn size_of_folder(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let mut total = 0u64;
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            total = total.saturating_add(size_of_folder(&path));
        } else if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            total = total.saturating_add(metadata.len());
        }
    }
    total
}

/// Bytes that removing a folder gives back: links count nothing, because what they lead to stays.
pub(crate) fn removable_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let mut total = 0u64;
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            total = total.saturating_add(removable_bytes(&entry.path()));
        } else if metadata.is_file() {
            total = total.saturating_add(metadata.len());
        }
    }
    total
}

/// Reads a text file of at most `limit` bytes.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, LibraryError> {
    let file = File::open(path).map_err(|source| explain_link(path, source)).at("open", path)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).at("read", path)?;
    if bytes.len() as u64 > limit {
        return Err(LibraryError::malformed(path, format!("it is larger than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| LibraryError::malformed(path, "it is not UTF-8 text"))
}

/// Reads a JSON file of at most `limit` bytes.
pub(crate) fn read_json(path: &Path, limit: u64) -> Result<serde_json::Value, LibraryError> {
    let text = read_text(path, limit)?;
    serde_json::from_str(&text).map_err(|error| LibraryError::malformed(path, format!("it is not JSON: {error}")))
}

/// Writes a JSON file, indented.
pub(crate) fn write_json(path: &Path, value: &serde_json::Value) -> Result<(), LibraryError> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|error| LibraryError::io("write", path, std::io::Error::other(error)))?;
    text.push(b'\n');
    fs::write(path, text).at("write", path)
}

/// Says where a link leads when its target is gone: "no such file" about a file that one can see is a riddle.
pub(crate) fn explain_link(path: &Path, source: std::io::Error) -> std::io::Error {
    match (source.kind(), fs::read_link(path)) {
        (std::io::ErrorKind::NotFound, Ok(target)) => std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("it is a link to {}, which is not there", target.display()),
        ),
        _ => source,
    }
}

/// Removes a folder if nothing is in it but the Finder's note on how to show it.
pub(crate) fn remove_deserted(folder: &Path) {
    let Ok(files) = fs::read_dir(folder) else { return };
    if files.flatten().all(|entry| entry.file_name() == FINDER_NOTE) {
        let _ = fs::remove_file(folder.join(FINDER_NOTE));
        let _ = fs::remove_dir(folder);
    }
}

/// The file name as text, with replacement characters where it is not Unicode.
pub(crate) fn file_name_text(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The files (not folders) directly in a folder, sorted by name.
pub(crate) fn files_of(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).at("list", folder)? {
        let path = entry.at("list", folder)?.path();
        if !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_cannot_flush_its_cache_is_synced_plainly() {
        let fault = |errno: Errno| Err(io::Error::from(errno));
        for refusal in [Errno::NOTSUP, Errno::NOTTY, Errno::INVAL] {
            sync_by(|| fault(refusal), || Ok(())).unwrap();
            assert!(sync_by(|| fault(refusal), || fault(Errno::IO)).is_err());
        }
        for failure in [Errno::IO, Errno::NOSPC] {
            assert!(sync_by(|| fault(failure), || Ok(())).is_err(), "a failed write must not pass as durable");
        }
        sync(&tempfile::tempfile().unwrap()).unwrap();
    }

    #[test]
    fn a_folder_with_no_more_than_the_finders_note_is_deserted() {
        let folder = tempfile::tempdir().unwrap();
        for (name, left) in [(".DS_Store", &[".DS_Store"][..]), ("empty", &[]), ("kept", &[".DS_Store", "model"])] {
            let place = folder.path().join(name);
            fs::create_dir(&place).unwrap();
            for file in left {
                fs::write(place.join(file), "").unwrap();
            }
            remove_deserted(&place);
            assert_eq!(place.exists(), name == "kept", "{name}");
        }
        assert!(folder.path().join("kept/.DS_Store").exists());
    }

    #[test]
    fn a_link_counts_with_its_size_but_frees_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("blob");
        fs::write(&outside, vec![0; 1000]).unwrap();
        let model = folder.path().join("model");
        fs::create_dir(&model).unwrap();
        fs::write(model.join("own"), vec![0; 10]).unwrap();
        std::os::unix::fs::symlink(&outside, model.join("linked")).unwrap();
        std::os::unix::fs::symlink(&model, model.join("loop")).unwrap();
        assert_eq!(size_of_folder(&model), 1010);
        assert_eq!(removable_bytes(&model), 10);
    }
}
