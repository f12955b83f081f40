//! The models on disk, below one folder.
//!
//! `HOME/models/<name>/` or `HOME/models/<organisation>/<name>/` holds one model each, in MLX's layout, with a hidden
//! `.linnet.json` that says where it came from. Whatever is under way lies in `HOME/models/.staging-*` and is renamed
//! into place when it is complete.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::config::CONFIG_NAME;
use crate::disk;
use crate::error::{IoContext as _, LibraryError};
use crate::starter::{STARTER, STARTER_NAME};

mod entry;
mod name;
mod origin;
mod record;
mod staging;

pub use entry::{ModelEntry, ModelKind};
pub use origin::Origin;
pub use record::Record;
pub use staging::Staging;

pub(crate) use name::{check_name, name_from};

/// The variable that says where Linnet keeps its files.
const HOME_VARIABLE: &str = "LINNET_HOME";
/// How many similar names an error suggests.
const SUGGESTIONS: usize = 3;

/// The folder of models.
#[derive(Clone, Debug)]
pub struct Store {
    models: PathBuf,
}

/// What removing a model did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// The model's name.
    pub name: String,
    /// Where it was.
    pub path: PathBuf,
    /// Bytes given back to the disk; linked files count nothing, because they stay.
    pub bytes_freed: u64,
}

impl Store {
    /// Opens (and if need be makes) the store below `home`, and sweeps away what crashed imports left.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(home: &Path) -> Result<Self, LibraryError> {
        let models = home.join("models");
        fs::create_dir_all(&models).at("make", &models)?;
        let store = Store { models };
        // On a read-only volume the models can still be used, whatever lies beside them.
        let _ = staging::sweep(&store.models);
        Ok(store)
    }

    /// Opens the store at `LINNET_HOME`, or else in the platform's data folder.
    ///
    /// # Errors
    /// When no home folder is known, or as in [`Store::open`].
    pub fn from_environment() -> Result<Self, LibraryError> {
        let home = home_folder(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))?;
        Store::open(&home)
    }

    /// The folder that holds everything Linnet keeps.
    pub fn home(&self) -> &Path {
        self.models.parent().unwrap_or(&self.models)
    }

    /// The folder that holds the models.
    pub fn models_folder(&self) -> &Path {
        &self.models
    }

    /// All models, sorted by name. A folder that is no usable model is listed too, with its problem.
    ///
    /// # Errors
    /// When the folder of models itself cannot be read.
    pub fn list(&self) -> Result<Vec<ModelEntry>, LibraryError> {
        let mut entries: Vec<ModelEntry> =
            self.folders()?.into_iter().map(|(name, path)| ModelEntry::read(&name, &path)).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The model of that name. An unambiguous name without its organisation or in other letter case will do, and so
    /// will [`STARTER`] and the path of a folder in MLX's layout outside of the store.
    ///
    /// # Errors
    /// [`LibraryError::NotFound`] with similar names, [`LibraryError::Ambiguous`] with all that fit.
    pub fn find(&self, name: &str) -> Result<ModelEntry, LibraryError> {
        let folders = self.folders()?;
        if let Some((name, path)) = choose(name, &folders)? {
            return Ok(ModelEntry::read(name, path));
        }
        let path = Path::new(name);
        if path.join(CONFIG_NAME).is_file() {
            let path = fs::canonicalize(path).at("find", path)?;
            return Ok(ModelEntry::read(&disk::file_name_text(&path), &path));
        }
        let names: Vec<&str> = folders.iter().map(|folder| folder.0.as_str()).collect();
        Err(LibraryError::NotFound { name: name.to_owned(), near: near_names(name, &names) })
    }

    /// Removes a model of the store. Links are removed, never followed.
    ///
    /// # Errors
    /// As in [`Store::find`], except that a path is not accepted; [`LibraryError::OutsideStore`] when the folder of an
    /// organisation is a link that leads elsewhere.
    pub fn remove(&self, name: &str) -> Result<Removed, LibraryError> {
        let folders = self.folders()?;
        let Some((name, path)) = choose(name, &folders)? else {
            let names: Vec<&str> = folders.iter().map(|folder| folder.0.as_str()).collect();
            return Err(LibraryError::NotFound { name: name.to_owned(), near: near_names(name, &names) });
        };
        let store = fs::canonicalize(&self.models).at("find", &self.models)?;
        let parent = path.parent().unwrap_or(path);
        let target = fs::canonicalize(parent).at("find", parent)?;
        if !target.starts_with(&store) {
            return Err(LibraryError::OutsideStore { path: path.clone(), store, target });
        }
        let is_link = path.symlink_metadata().at("read", path)?.is_symlink();
        let bytes_freed = if is_link { 0 } else { disk::removable_bytes(path) };
        if is_link {
            fs::remove_file(path).at("remove", path)?;
        } else {
            // Renamed first: a model that is half removed must not be seen.
            let staging = Staging::create(self)?;
            let grave = staging.path().join("removed");
            fs::rename(path, &grave).at("remove", path)?;
            staging.discard()?;
        }
        if target != store {
            // The organisation's folder goes with its last model.
            disk::remove_deserted(parent);
        }
        disk::sync_folder(&self.models)?;
        Ok(Removed { name: name.clone(), path: path.clone(), bytes_freed })
    }

    /// Where a model of that name lies or would lie.
    ///
    /// # Errors
    /// [`LibraryError::InvalidName`].
    pub fn path_of(&self, name: &str) -> Result<PathBuf, LibraryError> {
        check_name(name)?;
        Ok(self.models.join(name))
    }

    /// Refuses a name that is not allowed, or that is taken unless `replace` is set. Only a model can be replaced:
    /// never the folder of an organisation or somebody's own files.
    ///
    /// # Errors
    /// [`LibraryError::InvalidName`], [`LibraryError::NameTaken`] or [`LibraryError::NotAModel`].
    pub fn check_free(&self, name: &str, replace: bool) -> Result<(), LibraryError> {
        let path = self.path_of(name)?;
        if let Some(holds) = what_else(&path) {
            return Err(LibraryError::NotAModel { name: name.to_owned(), path, holds });
        }
        if !replace && path.symlink_metadata().is_ok() {
            return Err(LibraryError::NameTaken { name: name.to_owned(), path });
        }
        let organisation = path.parent().filter(|parent| *parent != self.models);
        if let Some(organisation) = organisation.filter(|folder| is_model(folder)) {
            let name = disk::file_name_text(organisation);
            return Err(LibraryError::NameTaken { name, path: organisation.to_owned() });
        }
        Ok(())
    }

    /// Begins a model that becomes visible when it is complete.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn stage(&self) -> Result<Staging, LibraryError> {
        Staging::create(self)
    }

    /// Names and folders of all models.
    fn folders(&self) -> Result<Vec<(String, PathBuf)>, LibraryError> {
        let mut found = Vec::new();
        for path in visible_folders(&self.models)? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
            let inner = visible_folders(&path).unwrap_or_default();
            if is_model(&path) || inner.is_empty() {
                found.push((name, path));
            } else {
                for folder in inner {
                    let Some(model) = folder.file_name().and_then(|name| name.to_str()) else { continue };
                    found.push((format!("{name}/{model}"), folder.clone()));
                }
            }
        }
        Ok(found)
    }
}

/// Whether a folder is meant to be a model, complete or not, rather than an organisation.
fn is_model(folder: &Path) -> bool {
    disk::files_of(folder).is_ok_and(|files| {
        files.iter().any(|path| {
            let name = disk::file_name_text(path);
            name == CONFIG_NAME || name == record::RECORD_NAME || name.ends_with(".safetensors")
        })
    })
}

/// What is at this place, in words, where that is neither nothing, an empty folder, a model nor a link that leads
/// nowhere.
fn what_else(path: &Path) -> Option<String> {
    // A link whose target is gone is all that is left of a model on another disk.
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_dir() {
        return Some("a file".into());
    }
    if is_model(path) {
        return None;
    }
    // What cannot be listed could be anything.
    let Ok(entries) = fs::read_dir(path) else { return Some("what cannot be read".into()) };
    let mut names: Vec<String> = entries
        .map(|entry| entry.map_or_else(|error| error.to_string(), |entry| disk::file_name_text(&entry.path())))
        .filter(|name| name != disk::FINDER_NOTE)
        .collect();
    names.sort();
    let first = names.iter().take(SUGGESTIONS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        count if count <= SUGGESTIONS => Some(first),
        count => Some(format!("{first} and {} more", count - SUGGESTIONS)),
    }
}

/// The folders in a folder (also those behind links, even when the target is gone), without hidden ones.
fn visible_folders(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).at("list", folder)? {
        let entry = entry.at("list", folder)?;
        let path = entry.path();
        let is_dangling_link = path.is_symlink() && !path.exists();
        if !disk::file_name_text(&path).starts_with('.') && (path.is_dir() || is_dangling_link) {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Chooses by full name, then by name in any case, then by the part behind the organisation; a folder that is called
/// so comes before the starter.
fn choose<'a>(name: &str, folders: &'a [(String, PathBuf)]) -> Result<Option<&'a (String, PathBuf)>, LibraryError> {
    if let Some(exact) = folders.iter().find(|folder| folder.0 == name) {
        return Ok(Some(exact));
    }
    let wanted = name.to_lowercase();
    let last = |full: &str| full.rsplit('/').next().unwrap_or(full).to_lowercase();
    let rules: [&dyn Fn(&str) -> bool; 2] =
        [&|full: &str| full.to_lowercase() == wanted, &|full: &str| last(full) == wanted];
    for fits in rules {
        let candidates: Vec<&(String, PathBuf)> = folders.iter().filter(|folder| fits(&folder.0)).collect();
        match candidates.as_slice() {
            [] => {}
            [only] => return Ok(Some(only)),
            several => {
                let candidates = several.iter().map(|folder| folder.0.clone()).collect();
                return Err(LibraryError::Ambiguous { name: name.to_owned(), candidates });
            }
        }
    }
    let starter = folders.iter().find(|folder| folder.0 == STARTER_NAME);
    Ok(starter.filter(|_| name == STARTER))
}

/// The names that resemble one, nearest first: those that contain it or differ in few letters.
fn near_names(name: &str, names: &[&str]) -> Vec<String> {
    let wanted = name.to_lowercase();
    let mut scored: Vec<(usize, &str)> = names
        .iter()
        .filter_map(|candidate| {
            let text = candidate.to_lowercase();
            let last = text.rsplit('/').next().unwrap_or(&text);
            let distance = edit_distance(&wanted, &text).min(edit_distance(&wanted, last));
            let contained = wanted.len() >= 3 && text.contains(&wanted);
            let limit = wanted.chars().count().div_ceil(3).max(2);
            (contained || distance <= limit).then_some((if contained { 0 } else { distance }, *candidate))
        })
        .collect();
    scored.sort();
    scored.into_iter().take(SUGGESTIONS).map(|(_, name)| name.to_owned()).collect()
}

/// Levenshtein's distance in characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Where Linnet keeps its files, decided from the environment alone.
fn home_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, LibraryError> {
    if let Some(home) = variable(HOME_VARIABLE) {
        return Ok(home);
    }
    let home = variable("HOME");
    if cfg!(target_os = "macos") {
        return home.map(|home| home.join("Library/Application Support/Linnet")).ok_or(LibraryError::NoHome);
    }
    // The XDG specification ignores relative paths.
    variable("XDG_DATA_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| home.map(|home| home.join(".local/share")))
        .map(|data| data.join("linnet"))
        .ok_or(LibraryError::NoHome)
}

#[cfg(test)]
#[path = "store/store_tests.rs"]
mod tests;
