//! The weights of a model folder: memory-mapped safetensors, validated before anything is read from them.
//!
//! The `safetensors` crate checks that a header's offsets are in order, do not overlap, leave no gaps, fit the shapes
//! and end where the file ends; this file adds what concerns several files: the index, shard names that stay inside the
//! folder, tensors that stand in two shards. A map is kept only while a model loads: kernels re-lay the weights, so a
//! file that changes later cannot reach a running model.
#![allow(unsafe_code)]

use crate::{ComputeError, Dtype, Result};
use memmap2::Mmap;
use safetensors::SafeTensors;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Path, PathBuf},
};

/// The name of the file that says which shard holds which tensor.
const INDEX_FILE: &str = "model.safetensors.index.json";

/// The name of the weights where one file holds them all.
const SINGLE_FILE: &str = "model.safetensors";

/// All tensors of a model folder.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    shards: Vec<Mmap>,
    tensors: BTreeMap<String, Entry>,
    /// Tensors of types that no model computes with, and the names of those types.
    unusable: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    begin: usize,
    end: usize,
}

/// A tensor as it lies in the file: little-endian elements in row-major order. The bytes may be misaligned.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its name in the checkpoint.
    pub name: &'a str,
    /// How its elements are stored.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: &'a [usize],
    /// Its elements.
    pub bytes: &'a [u8],
}

impl Checkpoint {
    /// Opens the weights of `folder`, by the importer's rule: the shards its index names; `model.safetensors`, where
    /// there is no index or it names shards that are not there; or else every `model*.safetensors`.
    ///
    /// # Errors
    /// When there are none, a file cannot be read, a header does not describe its file, a shard name leaves the folder
    /// or a tensor stands in two shards.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut checkpoint = Self {
            folder: folder.to_path_buf(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            unusable: BTreeMap::new(),
        };
        for name in shard_names(folder)? {
            checkpoint.add_shard(&folder.join(name))?;
        }
        Ok(checkpoint)
    }

    fn add_shard(&mut self, path: &Path) -> Result<()> {
        let io = |source| ComputeError::Io { path: path.to_path_buf(), source };
        let damaged = |reason: String| ComputeError::Damaged { path: path.to_path_buf(), reason };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is private to this checkpoint and only read; a file truncated by another process while a
        // model loads ends the process, as with every memory-mapped loader, and the library moves files in whole.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (header_length, metadata) =
            SafeTensors::read_metadata(&map).map_err(|error| damaged(format!("its header is invalid ({error})")))?;
        let data_start = header_length + size_of::<u64>();
        let data_end = data_start + metadata.data_len();
        if data_end != map.len() {
            return Err(damaged(format!("its header describes {data_end} bytes but the file has {}", map.len())));
        }
        for (name, info) in metadata.tensors() {
            let dtype = match info.dtype {
                safetensors::Dtype::F32 => Dtype::F32,
                safetensors::Dtype::F16 => Dtype::F16,
                safetensors::Dtype::BF16 => Dtype::BF16,
                safetensors::Dtype::U32 => Dtype::U32,
                // Buffers such as position ids are never read; a model that does ask for one is told its type.
                other => {
                    self.unusable.insert(name.clone(), format!("{other:?}"));
                    continue;
                }
            };
            let (begin, end) = info.data_offsets;
            let entry = Entry {
                shard: self.shards.len(),
                dtype,
                shape: info.shape.clone(),
                begin: data_start + begin,
                end: data_start + end,
            };
            if self.tensors.insert(name.clone(), entry).is_some() {
                return Err(damaged(format!("the tensor {name} stands in another shard too")));
            }
        }
        self.shards.push(map);
        Ok(())
    }

    /// The folder it was opened from.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of all tensors that models can compute with, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tensors.values().map(|entry| entry.end - entry.begin).sum()
    }

    /// The tensor of this name, if there is one.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, entry) = self.tensors.get_key_value(name)?;
        let bytes = &self.shards[entry.shard][entry.begin..entry.end];
        Some(TensorView { name, dtype: entry.dtype, shape: &entry.shape, bytes })
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// When there is none, or its type is not one that models compute with.
    pub fn require(&self, name: &str) -> Result<TensorView<'_>> {
        self.tensor(name).ok_or_else(|| match self.unusable.get(name) {
            Some(found) => ComputeError::WrongDtype {
                name: name.to_owned(),
                found: found.clone(),
                expected: "F32, F16, BF16 or U32",
            },
            None => ComputeError::MissingTensor { folder: self.folder.clone(), name: name.to_owned() },
        })
    }
}

impl TensorView<'_> {
    /// Checks the shape.
    ///
    /// # Errors
    /// When it is another.
    pub fn expect_shape(&self, expected: &[usize]) -> Result<()> {
        if self.shape == expected {
            return Ok(());
        }
        Err(ComputeError::WrongShape {
            name: self.name.to_owned(),
            found: self.shape.to_vec(),
            expected: expected.to_vec(),
        })
    }
}

/// The shards of a folder in a stable order.
fn shard_names(folder: &Path) -> Result<BTreeSet<String>> {
    let index = folder.join(INDEX_FILE);
    let single = BTreeSet::from([SINGLE_FILE.to_owned()]);
    let is_there = |name: &str| folder.join(name).symlink_metadata().is_ok();
    if !index.is_file() {
        return if is_there(SINGLE_FILE) { Ok(single) } else { scan(folder) };
    }
    let io = |source| ComputeError::Io { path: index.clone(), source };
    let damaged = |reason: String| ComputeError::Damaged { path: index.clone(), reason };
    let text = std::fs::read_to_string(&index).map_err(io)?;
    let document: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| damaged(format!("it is not JSON ({error})")))?;
    let map = document
        .get("weight_map")
        .and_then(serde_json::Value::as_object)
        .ok_or_else(|| damaged("it has no weight_map".to_owned()))?;
    let mut names = BTreeSet::new();
    for value in map.values() {
        let name = value.as_str().ok_or_else(|| damaged(format!("its weight_map names {value} as a file")))?;
        if !stays_inside(name) {
            return Err(damaged(format!("it names {name:?}, which lies outside the model folder")));
        }
        names.insert(name.to_owned());
    }
    if names.is_empty() {
        return Err(ComputeError::NoWeights { folder: folder.to_path_buf() });
    }
    // Converted models sometimes keep the index of what they were converted from.
    let is_stale = is_there(SINGLE_FILE) && !names.iter().all(|name| is_there(name));
    Ok(if is_stale { single } else { names })
}

/// Whether a shard name is a plain file name.
fn stays_inside(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(std::path::Component::Normal(_)), None))
        && !name.contains(['/', '\\'])
}

fn scan(folder: &Path) -> Result<BTreeSet<String>> {
    let entries =
        std::fs::read_dir(folder).map_err(|source| ComputeError::Io { path: folder.to_path_buf(), source })?;
    let names: BTreeSet<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("model") && name.ends_with(".safetensors"))
        .collect();
    if names.is_empty() {
        return Err(ComputeError::NoWeights { folder: folder.to_path_buf() });
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(folder: &Path, file: &str, header: &str, data: &[u8]) {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        fs::write(folder.join(file), bytes).unwrap();
    }

    fn open_error(header: &str, data: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "model.safetensors", header, data);
        Checkpoint::open(folder.path()).unwrap_err().to_string()
    }

    #[test]
    fn reads_tensors_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let header = r#"{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
        write(folder.path(), "model.safetensors", header, &[0, 0, 128, 63, 0, 0, 0, 64]);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let tensor = checkpoint.require("a").unwrap();
        assert_eq!((tensor.dtype, tensor.shape, tensor.bytes.len()), (Dtype::F32, [1, 2].as_slice(), 8));
        assert!(checkpoint.require("b").unwrap_err().to_string().contains("lack the tensor b"));
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let message = open_error(r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#, &[0; 12]);
        assert!(message.contains("model.safetensors is damaged"), "{message}");
    }

    #[test]
    fn overlapping_tensors_are_refused() {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
        assert!(open_error(header, &[0; 12]).contains("header is invalid"));
    }

    #[test]
    fn a_size_that_does_not_fit_the_shape_is_refused() {
        let header = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#;
        assert!(open_error(header, &[0; 8]).contains("header is invalid"));
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model.safetensors"), u64::MAX.to_le_bytes()).unwrap();
        assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("header is invalid"));
    }

    #[test]
    fn a_shard_name_that_leaves_the_folder_is_refused() {
        for name in ["../model.safetensors", "/etc/model.safetensors", "a/b.safetensors", "..", "a\\b"] {
            let folder = tempfile::tempdir().unwrap();
            let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
            fs::write(folder.path().join(INDEX_FILE), index).unwrap();
            let message = Checkpoint::open(folder.path()).unwrap_err().to_string();
            assert!(message.contains("outside the model folder"), "{name}: {message}");
        }
    }

    #[test]
    fn a_tensor_in_two_shards_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        write(folder.path(), "model-1.safetensors", header, &[0; 4]);
        write(folder.path(), "model-2.safetensors", header, &[0; 4]);
        assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("in another shard too"));
    }

    #[test]
    fn a_tensor_of_a_type_that_no_model_uses_is_not_called_missing() {
        let folder = tempfile::tempdir().unwrap();
        let header = r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
        write(folder.path(), "model.safetensors", header, &[0; 8]);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let message = checkpoint.require("a").unwrap_err().to_string();
        assert!(message.contains("stored as I64") && message.contains("BF16"), "{message}");
        assert_eq!(checkpoint.names().count(), 0, "a buffer that nobody asks for is no weight left over");
    }

    #[test]
    fn the_importers_rule_says_which_files_are_the_weights() {
        let header = |name: &str| format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
        let index = |shards: &[&str]| {
            let map: serde_json::Map<String, serde_json::Value> =
                shards.iter().map(|shard| ((*shard).to_owned(), (*shard).into())).collect();
            serde_json::json!({ "weight_map": map }).to_string()
        };
        let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        for (files, shards, expected) in [
            // A whole model beside shards of an older one, without an index and with one that is out of date.
            (&["model.safetensors", one][..], None, &["model.safetensors"][..]),
            (&["model.safetensors", one], Some([one, two]), &["model.safetensors"]),
            (&["model.safetensors", one, two], Some([one, two]), &[one, two]),
            (&[one, two], None, &[one, two]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                write(folder.path(), file, &header(file), &[0; 4]);
            }
            if let Some(shards) = shards {
                fs::write(folder.path().join(INDEX_FILE), index(&shards)).unwrap();
            }
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            assert_eq!(checkpoint.names().collect::<Vec<_>>(), expected, "{files:?} {shards:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), one, &header(one), &[0; 4]);
        fs::write(folder.path().join(INDEX_FILE), index(&[one, two])).unwrap();
        assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains(two));
    }

    #[test]
    fn a_folder_without_weights_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("holds no model.safetensors"));
    }
}
