//! numpy's archives of arrays, as mlx-whisper's older models have their weights: members of a zip file, not compressed,
//! each with a head of text (numpy's `lib/format.py`).

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read as _};
use std::path::Path;

use super::folder::Found;
use crate::disk;
use crate::error::{IoContext as _, LibraryError};
use crate::weights::Dtype;

/// A head of one array is some hundred bytes.
const HEAD_LIMIT: u64 = 1 << 16;
const MAGIC: &[u8] = b"\x93NUMPY";

/// Opens an archive: its arrays, and the file to read them from.
pub(super) fn open(path: &Path) -> Result<(File, Vec<Found>), LibraryError> {
    let file = File::open(path).map_err(|source| disk::explain_link(path, source)).at("open", path)?;
    let length = file.metadata().at("read", path)?.len();
    let damaged = |reason: String| LibraryError::malformed(path, reason);
    let second = file.try_clone().at("open", path)?;
    let mut archive = zip::ZipArchive::new(BufReader::new(second))
        .map_err(|error| damaged(format!("it is no zip archive, or only a part of one ({error})")))?;
    let mut found = Vec::new();
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).map_err(|error| damaged(error.to_string()))?;
        let name = member.name().map_err(|error| damaged(error.to_string()))?.into_owned();
        if member.compression() != zip::CompressionMethod::Stored {
            return Err(LibraryError::UnsupportedFeature {
                path: path.to_owned(),
                feature: format!("compressed arrays (\"{name}\")"),
                remedy: "save them with numpy.savez, or as model.safetensors".into(),
            });
        }
        let start =
            member.data_start().ok_or_else(|| damaged(format!("the place of array \"{name}\" is not known")))?;
        let size = member.size();
        let mut head = Vec::new();
        if let Err(error) = member.by_ref().take(HEAD_LIMIT).read_to_end(&mut head) {
            // So the archive says that a checksum is wrong.
            let is_damage = matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof);
            return Err(if is_damage { damaged(error.to_string()) } else { LibraryError::io("read", path, error) });
        }
        let array = parse(&head).ok_or_else(|| damaged(format!("array \"{name}\" has no head that can be read")))?;
        let dtype = array.dtype.ok_or_else(|| LibraryError::UnsupportedFeature {
            path: path.to_owned(),
            feature: format!("the element type {} (array \"{name}\")", array.type_name),
            remedy: "use a copy of the model in float16 or float32".into(),
        })?;
        let bytes = array
            .shape
            .iter()
            .try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size))
            .ok_or_else(|| damaged(format!("array \"{name}\" has the impossible shape {:?}", array.shape)))?;
        let needed = start.saturating_add(array.head).saturating_add(bytes);
        if array.head + bytes != size {
            return Err(damaged(format!("array \"{name}\" has {size} bytes, its shape needs {}", array.head + bytes)));
        }
        if needed > length {
            let what = format!("array \"{name}\"");
            return Err(LibraryError::Truncated { path: path.to_owned(), what, needed, actual: length });
        }
        let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
        found.push(Found { name, dtype, shape: array.shape, file: 0, offset: start + array.head });
    }
    Ok((file, found))
}

struct Array {
    dtype: Option<Dtype>,
    type_name: String,
    shape: Vec<u64>,
    /// Bytes before the data.
    head: u64,
}

/// Reads the head of an array: magic, version, length, and a Python dictionary.
fn parse(bytes: &[u8]) -> Option<Array> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, start) = match *rest.first()? {
        1 => (u64::from(u16::from_le_bytes([*rest.get(2)?, *rest.get(3)?])), 10),
        2 | 3 => (u64::from(u32::from_le_bytes([*rest.get(2)?, *rest.get(3)?, *rest.get(4)?, *rest.get(5)?])), 12),
        _ => return None,
    };
    let end = start + usize::try_from(length).ok()?;
    let text = std::str::from_utf8(bytes.get(start..end)?).ok()?;
    let after = |key: &str| Some(text[text.find(key)? + key.len()..].trim_start().strip_prefix(':')?.trim_start());
    let type_name = after("'descr'")?.strip_prefix('\'')?.split('\'').next()?.to_owned();
    if !after("'fortran_order'")?.starts_with("False") {
        return None;
    }
    let shape = after("'shape'")?.strip_prefix('(')?.split(')').next()?;
    let shape: Option<Vec<u64>> =
        shape.split(',').map(str::trim).filter(|size| !size.is_empty()).map(|size| size.parse().ok()).collect();
    let dtype = match type_name.as_str() {
        "<f2" => Some(Dtype::F16),
        "<f4" => Some(Dtype::F32),
        "<u4" => Some(Dtype::U32),
        "<i4" => Some(Dtype::I32),
        "<i8" => Some(Dtype::I64),
        _ => None,
    };
    Some(Array { dtype, type_name, shape: shape?, head: end as u64 })
}
