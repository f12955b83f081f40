//! Model folders made from a seed.
//!
//! The definition, and why it is one, stands in `exact/seeded.py`; both must give the same bytes. Nothing is kept in
//! memory beyond a buffer, so models of any size can be made.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// How many elements are made at a time.
const BLOCK: u64 = 1 << 16;

/// A tensor of a seeded model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Vec<Value>")]
pub struct SeededTensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its element type.
    pub dtype: SeededType,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The uniform law its elements are drawn by; packed codes have none.
    pub law: Option<UniformLaw>,
}

/// The element types a seeded model may have, by safetensors' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum SeededType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Bfloat16.
    Bf16,
    /// 32-bit words of packed codes.
    U32,
}

/// Values `middle + (k - 32767.5) * step` for a drawn 16-bit `k`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UniformLaw {
    /// The mean.
    pub middle: f32,
    /// The distance of neighbouring values.
    pub step: f32,
}

/// A model that a seed determines.
#[derive(Debug, Clone, Deserialize)]
pub struct SeededModel {
    /// What stands in config.json.
    pub config: Map<String, Value>,
    /// The seed.
    pub seed: u64,
    /// The tensors, in the order they are numbered and stored in.
    pub tensors: Vec<SeededTensor>,
    /// SHA-256 over all tensors' bytes in that order, where the maker noted it.
    pub weights_sha256: Option<String>,
}

/// A seeded model that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SeededError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The recipe is not one.
    #[error("{path}: {source}")]
    Recipe {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// What was made is not what the reference ran on.
    #[error("the weights made from seed {seed} have digest {found}, those of the reference {expected}")]
    Digest {
        /// The seed.
        seed: u64,
        /// What was made here.
        found: String,
        /// What the recipe names.
        expected: String,
    },
}

impl TryFrom<Vec<Value>> for SeededTensor {
    type Error = String;

    fn try_from(fields: Vec<Value>) -> Result<Self, String> {
        let [name, dtype, shape, law @ ..] = fields.as_slice() else {
            return Err(format!("{} fields where a tensor has 3 or 5", fields.len()));
        };
        let number = |value: &Value| value.as_f64().map(|number| number as f32).ok_or(format!("{value} is no number"));
        let law = match law {
            [] => None,
            [middle, step] => Some(UniformLaw { middle: number(middle)?, step: number(step)? }),
            _ => return Err(format!("{} fields where a tensor has 3 or 5", fields.len())),
        };
        let text = |error: serde_json::Error| error.to_string();
        Ok(Self {
            name: String::deserialize(name).map_err(text)?,
            dtype: SeededType::deserialize(dtype).map_err(text)?,
            shape: Vec::deserialize(shape).map_err(text)?,
            law,
        })
    }
}

impl SeededType {
    fn size(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::U32 => "U32",
        }
    }
}

impl SeededTensor {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.size()
    }

    /// Appends elements `first ..= last` (numbered from 1) of the tensor whose key is `key`.
    fn draw(&self, key: u64, first: u64, last: u64, out: &mut Vec<u8>) {
        for index in first..=last {
            let word = mix(key.wrapping_add(index.wrapping_mul(GOLDEN)));
            let Some(law) = self.law else {
                out.extend(((word >> 32) as u32).to_le_bytes());
                continue;
            };
            let value = law.middle + ((word >> 48) as f32 - 32767.5) * law.step;
            match self.dtype {
                SeededType::F16 => out.extend(f16::from_f32(value).to_le_bytes()),
                SeededType::Bf16 => out.extend(bf16::from_f32(value).to_le_bytes()),
                SeededType::F32 | SeededType::U32 => out.extend(value.to_le_bytes()),
            }
        }
    }
}

impl SeededModel {
    /// Reads a recipe.
    ///
    /// # Errors
    /// When it cannot be read or is none.
    pub fn open(path: &Path) -> Result<Self, SeededError> {
        let file = File::open(path).map_err(|source| SeededError::File { path: path.to_owned(), source })?;
        serde_json::from_reader(std::io::BufReader::new(file))
            .map_err(|source| SeededError::Recipe { path: path.to_owned(), source })
    }

    /// Writes config.json and model.safetensors into `folder`, which exists.
    ///
    /// # Errors
    /// When a file cannot be written, or the weights are not those that the recipe was recorded with.
    pub fn write(&self, folder: &Path) -> Result<(), SeededError> {
        let config = folder.join("config.json");
        std::fs::write(&config, Value::Object(self.config.clone()).to_string())
            .map_err(|source| SeededError::File { path: config, source })?;
        let path = folder.join("model.safetensors");
        let found = self.write_weights(&path).map_err(|source| SeededError::File { path, source })?;
        match (&self.weights_sha256, found) {
            (Some(expected), Some(found)) if *expected != found => {
                Err(SeededError::Digest { seed: self.seed, found, expected: expected.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Writes the weights in safetensors' format and returns their digest, where the recipe names one to compare with.
    fn write_weights(&self, path: &Path) -> std::io::Result<Option<String>> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": "mlx"}));
        let mut offset = 0;
        for tensor in &self.tensors {
            let end = offset + tensor.bytes();
            let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [offset, end]});
            header.insert(tensor.name.clone(), entry);
            offset = end;
        }
        let mut header = Value::Object(header).to_string();
        // Data begins at a multiple of 8.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        // For a recipe without a digest it would be most of the time.
        let mut digest = self.weights_sha256.as_ref().map(|_| Sha256::new());
        let mut block = Vec::new();
        for (tensor, number) in self.tensors.iter().zip(1u64..) {
            let key = mix(self.seed.wrapping_add(number.wrapping_mul(GOLDEN)));
            let count: u64 = tensor.shape.iter().product();
            for start in (0..count).step_by(BLOCK as usize) {
                block.clear();
                tensor.draw(key, start + 1, count.min(start + BLOCK), &mut block);
                if let Some(digest) = &mut digest {
                    digest.update(&block);
                }
                file.write_all(&block)?;
            }
        }
        file.flush()?;
        Ok(digest.map(|digest| digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// splitmix64's finalizer (Steele, Lea, Flood 2014).
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}
