//! Reading a safetensors file: the header is checked in full before a byte of a tensor is believed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Dtype;
use crate::disk;
use crate::error::{IoContext as _, LibraryError};

/// The format's own limit of a header's length, in bytes.
const HEADER_LIMIT: u64 = 100_000_000;

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
}
