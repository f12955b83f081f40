//! Writing safetensors: all tensors are announced first, then filled in any order and by any thread.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::Dtype;
use super::folder::INDEX_NAME;
use crate::disk;
use crate::error::{IoContext as _, LibraryError};

/// Bytes of tensors per file; what mlx-lm uses.
pub(crate) const SHARD_LIMIT: u64 = 5 << 30;

/// A file that can be written at any position; tests put a full disk in its place.
pub(crate) trait PositionedWrite: Send + Sync {
    /// Writes all bytes at an offset.
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()>;
    /// Makes everything durable.
    fn sync(&self) -> std::io::Result<()>;
}

impl PositionedWrite for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> std::io::Result<()> {
        disk::sync(self)
    }
}

/// Makes a file for writing.
pub(crate) type CreateFile = dyn Fn(&Path) -> std::io::Result<Box<dyn PositionedWrite>> + Sync;

/// Makes an ordinary file.
pub(crate) fn create_file(path: &Path) -> std::io::Result<Box<dyn PositionedWrite>> {
    Ok(Box::new(File::create_new(path)?))
}

/// A tensor that will be written.
#[derive(Clone, Debug)]
pub(crate) struct NewTensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
}

impl NewTensor {
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size()
    }
}

/// Safetensors files under way.
pub(crate) struct WeightsWriter {
    folder: PathBuf,
    tensors: Vec<NewTensor>,
    files: Vec<(PathBuf, Box<dyn PositionedWrite>)>,
    /// For each tensor its file and its offset there.
    places: Vec<(usize, u64)>,
}

impl WeightsWriter {
    /// Writes the headers of as many files as the tensors need.
    pub(crate) fn create(
        folder: &Path,
        tensors: Vec<NewTensor>,
        shard_limit: u64,
        create: &CreateFile,
    ) -> Result<Self, LibraryError> {
        let shards = divide(&tensors, shard_limit);
        let mut files = Vec::new();
        let mut places = vec![(0, 0); tensors.len()];
        for (number, shard) in shards.iter().enumerate() {
            let path = folder.join(shard_name(number, shards.len()));
            let (header, offsets) = header(&tensors, shard)?;
            let file = create(&path).at("write", &path)?;
            file.write_at(&header, 0).at("write", &path)?;
            for (&tensor, offset) in shard.iter().zip(offsets) {
                places[tensor] = (number, header.len() as u64 + offset);
            }
            files.push((path, file));
        }
        Ok(WeightsWriter { folder: folder.to_owned(), tensors, files, places })
    }

    /// Writes a part of a tensor, `offset` bytes from the tensor's first.
    pub(crate) fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<(), LibraryError> {
        let (file, start) = self.places[tensor];
        let (path, file) = &self.files[file];
        file.write_at(bytes, start + offset).at("write", path)
    }

    /// Makes the files durable and writes the index where there are several.
    pub(crate) fn finish(self) -> Result<(), LibraryError> {
        for (path, file) in &self.files {
            file.sync().at("sync", path)?;
        }
        if self.files.len() > 1 {
            let weight_map: Map<String, Value> = self
                .tensors
                .iter()
                .zip(&self.places)
                .map(|(tensor, place)| (tensor.name.clone(), shard_name(place.0, self.files.len()).into()))
                .collect();
            let total: u64 = self.tensors.iter().map(NewTensor::bytes).sum();
            let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
            disk::write_json(&self.folder.join(INDEX_NAME), &index)?;
        }
        Ok(())
    }
}

fn shard_name(number: usize, count: usize) -> String {
    if count == 1 { "model.safetensors".into() } else { format!("model-{:05}-of-{count:05}.safetensors", number + 1) }
}

/// Cuts the tensors, in their order, into files of at most `limit` bytes (or one tensor, if that alone is larger).
fn divide(tensors: &[NewTensor], limit: u64) -> Vec<Vec<usize>> {
    let mut shards: Vec<Vec<usize>> = vec![Vec::new()];
    let mut filled = 0u64;
    for (index, tensor) in tensors.iter().enumerate() {
        if filled > 0 && filled + tensor.bytes() > limit {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += tensor.bytes();
        if let Some(shard) = shards.last_mut() {
            shard.push(index);
        }
    }
    // The format has no padding between tensors: wide elements first keep every tensor aligned to its element size.
    for shard in &mut shards {
        shard.sort_by_key(|&index| std::cmp::Reverse(tensors[index].dtype.size()));
    }
    shards
}

/// The header of one file (with its length prefix) and the offset of each of its tensors behind it.
fn header(tensors: &[NewTensor], shard: &[usize]) -> Result<(Vec<u8>, Vec<u64>), LibraryError> {
    let mut fields = Map::new();
    fields.insert("__metadata__".into(), json!({ "format": "mlx" }));
    let mut offsets = Vec::with_capacity(shard.len());
    let mut end = 0u64;
    for &index in shard {
        let tensor = &tensors[index];
        offsets.push(end);
        let start = end;
        end += tensor.bytes();
        fields.insert(
            tensor.name.clone(),
            json!({ "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, end] }),
        );
    }
    let mut text = Value::Object(fields).to_string().into_bytes();
    // 64 rather than the format's 8: the data then begins on a cache line of the mapped file.
    const ALIGNMENT: usize = 64;
    let padded = (8 + text.len()).next_multiple_of(ALIGNMENT) - 8;
    text.resize(padded, b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    Ok((bytes, offsets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::folder::Weights;

    fn tensors() -> Vec<NewTensor> {
        vec![
            NewTensor { name: "odd".into(), dtype: Dtype::F16, shape: vec![3] },
            NewTensor { name: "words".into(), dtype: Dtype::U32, shape: vec![2, 2] },
            NewTensor { name: "norm".into(), dtype: Dtype::F32, shape: vec![1] },
        ]
    }

    #[test]
    fn what_is_written_is_read_again_by_us_and_by_the_safetensors_crate() {
        let folder = tempfile::tempdir().unwrap();
        let writer = WeightsWriter::create(folder.path(), tensors(), SHARD_LIMIT, &create_file).unwrap();
        writer.write(1, 4, &[1; 12]).unwrap();
        writer.write(1, 0, &[2; 4]).unwrap();
        writer.write(0, 0, &[3; 6]).unwrap();
        writer.write(2, 0, &[4; 4]).unwrap();
        writer.finish().unwrap();

        let weights = Weights::open(folder.path()).unwrap();
        let (_, words) = weights.find("words").unwrap();
        assert_eq!(words.shape, [2, 2]);
        assert_eq!(words.offset % 64, 0);
        for (_, tensor) in weights.iter() {
            assert_eq!(tensor.offset % tensor.dtype.size(), 0, "{} is not aligned", tensor.name);
        }
        let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
        let view = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(view.tensor("words").unwrap().data(), [2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(view.tensor("odd").unwrap().data(), [3; 6]);
    }

    #[test]
    fn large_models_become_shards_with_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let writer = WeightsWriter::create(folder.path(), tensors(), 20, &create_file).unwrap();
        writer.write(0, 0, &[3; 6]).unwrap();
        writer.write(1, 0, &[1; 16]).unwrap();
        writer.write(2, 0, &[4; 4]).unwrap();
        writer.finish().unwrap();
        assert!(folder.path().join("model-00002-of-00002.safetensors").is_file());
        assert_eq!(Weights::open(folder.path()).unwrap().iter().count(), 3);
    }
}
