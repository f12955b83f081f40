//! The element types of GGUF tensors.

use crate::affine::Affine;

/// An element type of a GGUF tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    /// A type that is not imported, by its number.
    Other(u32),
}

/// How a block type lies in the file: `elements` weights take `bytes` bytes, and each run of `group` weights has its
/// own scale and bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockLayout {
    pub(crate) elements: usize,
    pub(crate) bytes: usize,
    pub(crate) group: usize,
}

/// What becomes of a block type in our format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// The quantized values stay as they are.
    Exact(Affine),
    /// The values are quantized anew: the format's own groups are narrower than any affine group.
    Requantized(Affine),
}

const fn affine(bits: u32) -> Affine {
    Affine { bits, group_size: 32 }
}

impl TensorType {
    /// The type of that number in `enum ggml_type`.
    pub(crate) fn from_number(number: u32) -> Self {
        match number {
            0 => TensorType::F32,
            1 => TensorType::F16,
            2 => TensorType::Q4_0,
            3 => TensorType::Q4_1,
            6 => TensorType::Q5_0,
            7 => TensorType::Q5_1,
            8 => TensorType::Q8_0,
            10 => TensorType::Q2K,
            11 => TensorType::Q3K,
            12 => TensorType::Q4K,
            13 => TensorType::Q5K,
            14 => TensorType::Q6K,
            30 => TensorType::Bf16,
            other => TensorType::Other(other),
        }
    }

    /// The type's usual name.
    pub(crate) fn name(self) -> String {
        match self {
            TensorType::F32 => "F32",
            TensorType::F16 => "F16",
            TensorType::Bf16 => "BF16",
            TensorType::Q4_0 => "Q4_0",
            TensorType::Q4_1 => "Q4_1",
            TensorType::Q5_0 => "Q5_0",
            TensorType::Q5_1 => "Q5_1",
            TensorType::Q8_0 => "Q8_0",
            TensorType::Q2K => "Q2_K",
            TensorType::Q3K => "Q3_K",
            TensorType::Q4K => "Q4_K",
            TensorType::Q5K => "Q5_K",
            TensorType::Q6K => "Q6_K",
            TensorType::Other(number) => return other_name(number),
        }
        .into()
    }

    /// Elements and bytes of a block; dense types are blocks of one element. `None` for types that are not imported.
    pub(crate) fn layout(self) -> Option<BlockLayout> {
        let layout = |elements, bytes, group| Some(BlockLayout { elements, bytes, group });
        match self {
            TensorType::F32 => layout(1, 4, 1),
            TensorType::F16 | TensorType::Bf16 => layout(1, 2, 1),
            TensorType::Q4_0 => layout(32, 18, 32),
            TensorType::Q4_1 => layout(32, 20, 32),
            TensorType::Q5_0 => layout(32, 22, 32),
            TensorType::Q5_1 => layout(32, 24, 32),
            TensorType::Q8_0 => layout(32, 34, 32),
            TensorType::Q2K => layout(256, 84, 16),
            TensorType::Q3K => layout(256, 110, 16),
            TensorType::Q4K => layout(256, 144, 32),
            TensorType::Q5K => layout(256, 176, 32),
            TensorType::Q6K => layout(256, 210, 16),
            TensorType::Other(_) => None,
        }
    }

    /// Bits of a weight's integer or number, without its share of the scales; 0 for types that are not imported.
    pub(crate) fn bits(self) -> u32 {
        match self {
            TensorType::F32 => 32,
            TensorType::F16 | TensorType::Bf16 => 16,
            TensorType::Q8_0 => 8,
            TensorType::Q6K => 6,
            TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => 5,
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => 4,
            TensorType::Q3K => 3,
            TensorType::Q2K => 2,
            TensorType::Other(_) => 0,
        }
    }

    /// What becomes of the type in our format; `None` for dense types, which stay dense, and for unknown ones.
    pub(crate) fn mapping(self) -> Option<Mapping> {
        match self {
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => Some(Mapping::Exact(affine(4))),
            TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => Some(Mapping::Exact(affine(5))),
            TensorType::Q8_0 => Some(Mapping::Exact(affine(8))),
            TensorType::Q2K => Some(Mapping::Requantized(affine(4))),
            TensorType::Q3K => Some(Mapping::Requantized(affine(5))),
            TensorType::Q6K => Some(Mapping::Requantized(affine(8))),
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 | TensorType::Other(_) => None,
        }
    }
}

/// Names of the types that exist but are not imported, so that a refusal can be understood.
fn other_name(number: u32) -> String {
    let name = match number {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        40 => "NVFP4",
        _ => return format!("type number {number}"),
    };
    name.into()
}
