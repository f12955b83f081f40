//! Reading safetensors: the header is checked in full before a byte of a tensor is believed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Dtype;
use crate::disk;
use crate::error::{IoContext as _, LibraryError};

/// The format's own limit of a header's length, in bytes.
const HEADER_LIMIT: u64 = 100_000_000;
/// A shard index of the largest models is some megabytes.
const INDEX_LIMIT: u64 = 64 << 20;
/// Name of the file that says which shard holds which tensor.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// One tensor of a safetensors file.
#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// Outermost dimension first.
    pub(crate) shape: Vec<u64>,
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
    /// Length in bytes: the product of shape and element size.
    pub(crate) bytes: u64,
}

impl TensorInfo {
    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// An open safetensors file with a checked header.
#[derive(Debug)]
pub(crate) struct SafetensorsFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// In the order of their data.
    pub(crate) tensors: Vec<TensorInfo>,
}

impl SafetensorsFile {
    /// Opens a file and checks its header: names, types, shapes, and that the data regions fill the file without gap
    /// or overlap.
    pub(crate) fn open(path: &Path) -> Result<Self, LibraryError> {
        let file = File::open(path).map_err(|source| disk::explain_link(path, source)).at("open", path)?;
        let length = file.metadata().at("read", path)?.len();
        let truncated = |what: &str, needed: u64| LibraryError::Truncated {
            path: path.to_owned(),
            what: what.to_owned(),
            needed,
            actual: length,
        };
        if length < 8 {
            return Err(truncated("the length of the header", 8));
        }
        let mut prefix = [0u8; 8];
        file.read_exact_at(&mut prefix, 0).at("read", path)?;
        let header_length = u64::from_le_bytes(prefix);
        if header_length > HEADER_LIMIT {
            return Err(LibraryError::malformed(
                path,
                format!("its header claims {header_length} bytes; safetensors allows {HEADER_LIMIT}"),
            ));
        }
        let data_start = 8 + header_length;
        if data_start > length {
            return Err(truncated("the header", data_start));
        }
        let mut header = vec![0u8; header_length as usize];
        file.read_exact_at(&mut header, 8).at("read", path)?;
        let tensors = parse_header(path, &header, data_start, length)?;
        Ok(SafetensorsFile { path: path.to_owned(), file, tensors })
    }
}

/// Parses a header and checks it against the length of the file.
fn parse_header(path: &Path, header: &[u8], data_start: u64, length: u64) -> Result<Vec<TensorInfo>, LibraryError> {
    let bad = |reason: String| LibraryError::malformed(path, reason);
    let Value::Object(fields) =
        serde_json::from_slice(header).map_err(|error| bad(format!("its safetensors header is not JSON: {error}")))?
    else {
        return Err(bad("its safetensors header is not a JSON object".into()));
    };
    let mut tensors = Vec::with_capacity(fields.len());
    for (name, entry) in fields {
        if name == "__metadata__" {
            continue;
        }
        let type_name = entry["dtype"].as_str().unwrap_or("(none)");
        let dtype = Dtype::parse(type_name).ok_or_else(|| LibraryError::UnsupportedFeature {
            path: path.to_owned(),
            feature: format!("the element type {type_name} (tensor \"{name}\")"),
            remedy: "use a copy of the model in BF16, F16 or F32".into(),
        })?;
        let shape: Option<Vec<u64>> =
            entry["shape"].as_array().and_then(|sizes| sizes.iter().map(Value::as_u64).collect());
        let offsets: Option<Vec<u64>> =
            entry["data_offsets"].as_array().and_then(|ends| ends.iter().map(Value::as_u64).collect());
        let (Some(shape), Some([start, end])) = (shape, offsets.as_deref()) else {
            return Err(bad(format!("tensor \"{name}\" lacks a valid shape or data_offsets")));
        };
        let expected = shape
            .iter()
            .try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size))
            .ok_or_else(|| bad(format!("tensor \"{name}\" has the impossible shape {shape:?}")))?;
        if end.checked_sub(*start) != Some(expected) {
            return Err(bad(format!(
                "tensor \"{name}\" of shape {shape:?} and type {type_name} needs {expected} bytes, its data_offsets \
                 are [{start}, {end}]"
            )));
        }
        let needed =
            data_start.checked_add(*end).ok_or_else(|| bad(format!("tensor \"{name}\" ends beyond any file")))?;
        if needed > length {
            return Err(LibraryError::Truncated {
                path: path.to_owned(),
                what: format!("tensor \"{name}\""),
                needed,
                actual: length,
            });
        }
        tensors.push(TensorInfo { name, dtype, shape, offset: data_start + start, bytes: expected });
    }
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    let mut expected_offset = data_start;
    let mut previous = "the header".to_owned();
    for tensor in &tensors {
        if tensor.offset < expected_offset {
            return Err(bad(format!("tensor \"{}\" overlaps {previous}", tensor.name)));
        }
        if tensor.offset > expected_offset {
            let gap = tensor.offset - expected_offset;
            return Err(bad(format!("there are {gap} unnamed bytes before tensor \"{}\"", tensor.name)));
        }
        expected_offset = tensor.offset + tensor.bytes;
        previous = format!("tensor \"{}\"", tensor.name);
    }
    if expected_offset != length {
        return Err(bad(format!("{} bytes follow the last tensor", length - expected_offset)));
    }
    Ok(tensors)
}

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

    fn file_with(header: &str, data: usize) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend(vec![0u8; data]);
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn refusal(header: &str, data: usize) -> String {
        let (_folder, path) = file_with(header, data);
        SafetensorsFile::open(&path).unwrap_err().to_string()
    }

    #[test]
    fn a_sound_header_is_read() {
        let (_folder, path) = file_with(
            r#"{"__metadata__":{"format":"mlx"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}"#,
            28,
        );
        let file = SafetensorsFile::open(&path).unwrap();
        let names: Vec<&str> = file.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(file.tensors[1].elements(), 6);
        assert_eq!(file.tensors[1].offset, file.tensors[0].offset + 4);
    }

    #[test]
    fn overlapping_tensors_are_refused_by_name() {
        let text = refusal(
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
            12,
        );
        assert!(text.contains("\"b\" overlaps tensor \"a\""), "{text}");
    }

    #[test]
    fn a_truncated_file_says_how_many_bytes_are_missing() {
        let text = refusal(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 3);
        assert!(text.contains("\"a\"") && text.contains("(5 missing)"), "{text}");
    }

    #[test]
    fn an_unknown_element_type_is_refused_by_name() {
        let text = refusal(r#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#, 2);
        assert!(text.contains("F8_E4M3") && text.contains("\"a\""), "{text}");
    }

    #[test]
    fn offsets_that_contradict_the_shape_are_refused() {
        let text = refusal(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8);
        assert!(text.contains("needs 12 bytes"), "{text}");
    }

    #[test]
    fn gaps_trailing_bytes_and_huge_headers_are_refused() {
        assert!(refusal(r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#, 3).contains("unnamed bytes"));
        assert!(refusal(r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, 3).contains("follow the last"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
        assert!(SafetensorsFile::open(&path).unwrap_err().to_string().contains("claims"));
        let text =
            refusal(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}}"#, 8);
        assert!(text.contains("impossible shape"), "{text}");
    }

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

        let (folder, path) = file_with(r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, 2);
        std::fs::rename(path, folder.path().join("model-00002-of-00002.safetensors")).unwrap();
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
