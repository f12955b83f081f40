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

/// All tensors of a model folder.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    shards: Vec<Mmap>,
    tensors: BTreeMap<String, Entry>,
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
    /// Opens the weights of `folder`: the shards its index names, or else every `model*.safetensors` in it.
    ///
    /// # Errors
    /// When there are none, a file cannot be read, a header does not describe its file, a shard name leaves the folder,
    /// a tensor stands in two shards, or a tensor's type is not one that models use.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut checkpoint = Self { folder: folder.to_path_buf(), shards: Vec::new(), tensors: BTreeMap::new() };
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
                // Buffers such as position ids are never read; what a model does read is checked when it asks.
                _ => continue,
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

    /// The names of all tensors, in order.
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
    /// When there is none.
    pub fn require(&self, name: &str) -> Result<TensorView<'_>> {
        self.tensor(name)
            .ok_or_else(|| ComputeError::MissingTensor { folder: self.folder.clone(), name: name.to_owned() })
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
    if !index.exists() {
        return scan(folder);
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
    Ok(names)
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
    fn a_folder_without_weights_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("holds no model.safetensors"));
    }
}
