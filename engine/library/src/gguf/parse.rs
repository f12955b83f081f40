//! Parsing GGUF, with a bound on everything that the file can claim.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::tensor_type::TensorType;
use super::value::Value;
use super::{GgufFile, GgufTensor};
use crate::bytes::Reader;
use crate::disk;
use crate::error::{IoContext as _, LibraryError};

/// Key-value pairs of a file; real ones have some dozens.
const PAIR_LIMIT: u64 = 1 << 16;
/// Tensors of a file; the largest known models have some thousands.
const TENSOR_LIMIT: u64 = 1 << 17;
/// Bytes of a key or of a tensor's name; ggml's own limits are 65535 and 63.
const NAME_LIMIT: u64 = 65_535;
/// Bytes of a text value; chat templates reach some hundred kilobytes.
const TEXT_LIMIT: u64 = 16 << 20;
/// Elements of an array; vocabularies and merges stay below a million.
const ARRAY_LIMIT: u64 = 1 << 23;
/// Arrays in arrays.
const DEPTH_LIMIT: u32 = 4;
/// ggml's own limit.
const DIMENSION_LIMIT: u32 = 4;
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_LIMIT: u64 = 1 << 16;

/// What GGUF has beside plain bytes and numbers of four.
impl Reader<'_> {
    fn u64(&mut self, what: &str) -> Result<u64, LibraryError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn long_count(&mut self, what: &str, limit: u64) -> Result<u64, LibraryError> {
        let count = self.u64(what)?;
        if count > limit {
            return Err(self.malformed(format!("{what} is {count}; the limit is {limit}")));
        }
        Ok(count)
    }

    fn text(&mut self, what: &str, limit: u64) -> Result<String, LibraryError> {
        let length = self.long_count(&format!("the length of {what}"), limit)?;
        let bytes = self.take(length, what)?;
        String::from_utf8(bytes).map_err(|_| self.malformed(format!("{what} is not UTF-8 text")))
    }

    fn value(&mut self, kind: u32, what: &str, depth: u32) -> Result<Value, LibraryError> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array(what)?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(what)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(what)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(what)?).into()),
            4 => Value::Unsigned(self.u32(what)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(what)?).into()),
            6 => Value::Float32(f32::from_le_bytes(self.array(what)?)),
            7 => match self.array::<1>(what)?[0] {
                0 => Value::Boolean(false),
                1 => Value::Boolean(true),
                other => return Err(self.malformed(format!("{what} is a truth value of {other}"))),
            },
            8 => Value::Text(self.text(what, TEXT_LIMIT)?),
            9 => return self.values(what, depth),
            10 => Value::Unsigned(self.u64(what)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(what)?)),
            12 => Value::Float64(f64::from_le_bytes(self.array(what)?)),
            other => return Err(self.malformed(format!("{what} has the unknown value type {other}"))),
        })
    }

    fn values(&mut self, what: &str, depth: u32) -> Result<Value, LibraryError> {
        if depth == DEPTH_LIMIT {
            return Err(self.malformed(format!("{what} nests arrays deeper than {DEPTH_LIMIT}")));
        }
        let kind = self.u32(what)?;
        let count = self.long_count(&format!("the number of elements of {what}"), ARRAY_LIMIT)?;
        // Every element takes at least a byte; texts and arrays take at least their length field.
        let smallest = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            9 => 12,
            _ => 8,
        };
        self.reserve(count.saturating_mul(smallest), what)?;
        let mut values = Vec::with_capacity(count as usize);
        for _ in 0..count {
            values.push(self.value(kind, what, depth + 1)?);
        }
        Ok(Value::Array(values))
    }
}

/// Opens a GGUF file and checks its metadata and its table of tensors.
pub(crate) fn open(path: &Path) -> Result<GgufFile, LibraryError> {
    let file = File::open(path).map_err(|source| disk::explain_link(path, source)).at("open", path)?;
    let mut reader = Reader::new(path, &file)?;

    if reader.array::<4>("the magic number")? != *b"GGUF" {
        return Err(LibraryError::malformed(path, "it does not begin with \"GGUF\""));
    }
    let version = reader.u32("the version")?;
    if !(2..=3).contains(&version) {
        let (feature, remedy) = if (2..=3).contains(&version.swap_bytes()) {
            ("big-endian byte order".to_owned(), "use the little-endian file of the same model")
        } else {
            (format!("GGUF version {version}"), "versions 2 and 3 are read; convert the model with a current llama.cpp")
        };
        return Err(LibraryError::UnsupportedFeature { path: path.to_owned(), feature, remedy: remedy.into() });
    }
    let tensor_count = reader.long_count("the number of tensors", TENSOR_LIMIT)?;
    let pair_count = reader.long_count("the number of metadata entries", PAIR_LIMIT)?;

    let mut metadata = BTreeMap::new();
    for number in 0..pair_count {
        let key = reader.text(&format!("the key of metadata entry {number}"), NAME_LIMIT)?;
        let kind = reader.u32(&key)?;
        let value = reader.value(kind, &key, 0)?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(LibraryError::malformed(path, format!("it has the metadata key {key} twice")));
        }
    }
    let alignment = match metadata.get(ALIGNMENT_KEY) {
        None => DEFAULT_ALIGNMENT,
        Some(value) => value
            .as_integer()
            .filter(|alignment| alignment.is_power_of_two() && *alignment <= ALIGNMENT_LIMIT)
            .ok_or_else(|| LibraryError::malformed(path, format!("{ALIGNMENT_KEY} is {value:?}")))?,
    };
    let mut table = Vec::new();
    for number in 0..tensor_count {
        table.push(table_entry(&mut reader, number, alignment)?);
    }
    let (data_start, length) = (reader.position().next_multiple_of(alignment), reader.length());
    drop(reader);
    let tensors = place(path, table, data_start, length)?;
    Ok(GgufFile { path: path.to_owned(), file, metadata, tensors })
}

/// Reads one entry of the table; its offset is still relative to the data section.
fn table_entry(reader: &mut Reader<'_>, number: u64, alignment: u64) -> Result<GgufTensor, LibraryError> {
    let name = reader.text(&format!("the name of tensor {number}"), NAME_LIMIT)?;
    let what = format!("the table entry of tensor \"{name}\"");
    let dimensions = reader.u32(&what)?;
    if dimensions > DIMENSION_LIMIT {
        return Err(reader.malformed(format!("tensor \"{name}\" has {dimensions} dimensions; the limit is 4")));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(reader.u64(&what)?);
    }
    shape.reverse();
    let kind = TensorType::from_number(reader.u32(&what)?);
    let offset = reader.u64(&what)?;
    if offset % alignment != 0 {
        return Err(reader.malformed(format!("tensor \"{name}\" lies at {offset}, not a multiple of {alignment}")));
    }
    let elements = shape
        .iter()
        .try_fold(1u64, |product, &size| product.checked_mul(size))
        .filter(|elements| *elements > 0)
        .ok_or_else(|| reader.malformed(format!("tensor \"{name}\" has the impossible shape {shape:?}")))?;
    let bytes = match kind.layout() {
        None => 0,
        Some(layout) => {
            let columns = shape.last().copied().unwrap_or(1);
            if columns % layout.elements as u64 != 0 {
                return Err(reader.malformed(format!(
                    "tensor \"{name}\" has rows of {columns} elements, not a multiple of {}'s blocks of {}",
                    kind.name(),
                    layout.elements
                )));
            }
            (elements / layout.elements as u64)
                .checked_mul(layout.bytes as u64)
                .ok_or_else(|| reader.malformed(format!("tensor \"{name}\" has the impossible shape {shape:?}")))?
        }
    };
    Ok(GgufTensor { name, kind, shape, offset, bytes })
}

/// Makes the offsets absolute and checks that the tensors lie in the file, one behind the other.
fn place(
    path: &Path,
    mut table: Vec<GgufTensor>,
    data_start: u64,
    length: u64,
) -> Result<BTreeMap<String, GgufTensor>, LibraryError> {
    table.sort_by_key(|tensor| tensor.offset);
    let mut tensors: BTreeMap<String, GgufTensor> = BTreeMap::new();
    let mut end = data_start;
    let mut previous = String::new();
    for mut tensor in table {
        let start = data_start.checked_add(tensor.offset);
        let Some(needed) = start.and_then(|start| start.checked_add(tensor.bytes)) else {
            return Err(LibraryError::malformed(path, format!("tensor \"{}\" ends beyond any file", tensor.name)));
        };
        if needed > length {
            return Err(LibraryError::Truncated {
                path: path.to_owned(),
                what: format!("tensor \"{}\"", tensor.name),
                needed,
                actual: length,
            });
        }
        tensor.offset += data_start;
        if tensor.offset < end {
            return Err(LibraryError::malformed(
                path,
                format!("tensor \"{}\" overlaps tensor \"{previous}\"", tensor.name),
            ));
        }
        end = needed;
        previous.clone_from(&tensor.name);
        if tensors.insert(tensor.name.clone(), tensor).is_some() {
            return Err(LibraryError::malformed(path, format!("it has tensor \"{previous}\" twice")));
        }
    }
    Ok(tensors)
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
