//! The weights of a folder: one file, or the shards that an index names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::read::{SafetensorsFile, TensorInfo};
use crate::disk;
use crate::error::LibraryError;

/// A shard index of the largest models is some megabytes.
const INDEX_LIMIT: u64 = 64 << 20;
/// Name of the file that says which shard holds which tensor.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// All weights of a folder: one file or several shards.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(crate) files: Vec<SafetensorsFile>,
    places: BTreeMap<String, (usize, usize)>,
}

impl Weights {
    /// Opens `model.safetensors`, or the shards that the index names, or `model*.safetensors`.
    pub(crate) fn open(folder: &Path) -> Result<Self, LibraryError> {
        let mut files = Vec::new();
        let mut places = BTreeMap::new();
        for path in weight_files(folder)? {
            let file = SafetensorsFile::open(&path)?;
            for (index, tensor) in file.tensors.iter().enumerate() {
                if places.insert(tensor.name.clone(), (files.len(), index)).is_some() {
                    return Err(LibraryError::malformed(
                        &path,
                        format!("tensor \"{}\" is also in another shard of the same model", tensor.name),
                    ));
                }
            }
            files.push(file);
        }
        check_index(folder, &places)?;
        Ok(Weights { files, places })
    }

    /// The tensor of that name and the file that holds it.
    pub(crate) fn find(&self, name: &str) -> Option<(&SafetensorsFile, &TensorInfo)> {
        let &(file, tensor) = self.places.get(name)?;
        Some((self.files.get(file)?, self.files.get(file)?.tensors.get(tensor)?))
    }

    /// All tensors, sorted by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SafetensorsFile, &TensorInfo)> {
        self.places.keys().filter_map(|name| self.find(name))
    }
}

/// Which shard holds which tensor, by the index file, if there is one.
fn read_index(folder: &Path) -> Result<Option<BTreeMap<String, String>>, LibraryError> {
    let path = folder.join(INDEX_NAME);
    if !path.is_file() {
        return Ok(None);
    }
    let index = disk::read_json(&path, INDEX_LIMIT)?;
    let Some(map) = index["weight_map"].as_object() else {
        return Err(LibraryError::malformed(&path, "it has no weight_map"));
    };
    let mut places = BTreeMap::new();
    for (tensor, shard) in map {
        let shard = shard
            .as_str()
            .ok_or_else(|| LibraryError::malformed(&path, format!("the shard of tensor \"{tensor}\" is not a name")))?;
        if !is_plain_file_name(shard) {
            return Err(LibraryError::UnsafeShard { path, shard: shard.to_owned() });
        }
        places.insert(tensor.clone(), shard.to_owned());
    }
    Ok(Some(places))
}

/// Whether a name from a downloaded file stays inside the folder that it is joined to.
pub(crate) fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let single = folder.join("model.safetensors");
    if let Some(index) = read_index(folder)? {
        let mut shards: Vec<&String> = index.values().collect();
        shards.sort();
        shards.dedup();
        match shards.iter().find(|shard| !exists(&folder.join(shard))) {
            None => return Ok(shards.into_iter().map(|shard| folder.join(shard)).collect()),
            // Converted models sometimes keep the index of what they were converted from.
            Some(_) if exists(&single) => return Ok(vec![single]),
            Some(shard) => {
                return Err(LibraryError::MissingShard { path: folder.join(INDEX_NAME), shard: (*shard).clone() });
            }
        }
    }
    if exists(&single) {
        return Ok(vec![single]);
    }
    let mut files = disk::files_of(folder)?;
    files.retain(|path| {
        let name = disk::file_name_text(path);
        name.starts_with("model") && name.ends_with(".safetensors")
    });
    if files.is_empty() {
        return Err(LibraryError::UnknownSource { path: folder.to_owned(), reason: why_no_weights(folder) });
    }
    check_shard_count(folder, &files)?;
    Ok(files)
}

/// A link whose target is gone exists too: opening it gives the better error.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Without an index, the shards' own names (`model-00001-of-00003`) say how many there must be.
fn check_shard_count(folder: &Path, files: &[PathBuf]) -> Result<(), LibraryError> {
    let Some(total) = files.iter().find_map(|path| {
        let name = disk::file_name_text(path);
        name.strip_suffix(".safetensors")?.rsplit_once("-of-")?.1.parse::<usize>().ok()
    }) else {
        return Ok(());
    };
    for number in 1..=total {
        let marker = format!("-{number:05}-of-");
        if !files.iter().any(|path| disk::file_name_text(path).contains(&marker)) {
            return Err(LibraryError::MissingShard {
                path: folder.to_owned(),
                shard: format!("model{marker}{total:05}.safetensors"),
            });
        }
    }
    Ok(())
}

fn why_no_weights(folder: &Path) -> String {
    let names: Vec<String> =
        disk::files_of(folder).unwrap_or_default().iter().map(|path| disk::file_name_text(path)).collect();
    if names.iter().any(|name| name.ends_with(".icloud")) {
        return "its files are still in iCloud; open the folder in the Finder and download it first".into();
    }
    if let Some(name) = names.iter().find(|name| name.ends_with(".bin") || name.ends_with(".pth")) {
        return format!(
            "its weights are PyTorch pickles ({name}), which can run code when loaded; use a copy of the model with \
             .safetensors files"
        );
    }
    "it holds no model.safetensors; fetch the weights, or name the folder that holds them".into()
}

/// Every tensor that the index names must be in a shard.
fn check_index(folder: &Path, places: &BTreeMap<String, (usize, usize)>) -> Result<(), LibraryError> {
    let Some(index) = read_index(folder)? else { return Ok(()) };
    if index.values().any(|shard| !exists(&folder.join(shard))) {
        return Ok(());
    }
    match index.keys().find(|tensor| !places.contains_key(*tensor)) {
        None => Ok(()),
        Some(tensor) => Err(LibraryError::malformed(
            &folder.join(INDEX_NAME),
            format!("it names tensor \"{tensor}\", which no shard holds"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_name_that_leaves_the_folder_is_refused() {
        for shard in ["../secret.safetensors", "/etc/passwd", "..", "a/b.safetensors", "..\\x"] {
            let folder = tempfile::tempdir().unwrap();
            let index = serde_json::json!({ "weight_map": { "a": shard } });
            std::fs::write(folder.path().join(INDEX_NAME), index.to_string()).unwrap();
            let error = Weights::open(folder.path()).unwrap_err();
            assert!(matches!(&error, LibraryError::UnsafeShard { shard: named, .. } if named == shard), "{error}");
        }
    }

    #[test]
    fn a_missing_shard_is_named_with_and_without_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let index = serde_json::json!({ "weight_map": { "a": "model-00001-of-00002.safetensors" } });
        std::fs::write(folder.path().join(INDEX_NAME), index.to_string()).unwrap();
        let text = Weights::open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("model-00001-of-00002.safetensors"), "{text}");

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model-00002-of-00002.safetensors"), "never read").unwrap();
        let text = Weights::open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("model-00001-of-00002.safetensors"), "{text}");
    }

    #[test]
    fn a_dangling_link_says_where_it_leads() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("../blobs/gone", folder.path().join("model.safetensors")).unwrap();
        let text = Weights::open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("../blobs/gone"), "{text}");
    }
}
