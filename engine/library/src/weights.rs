//! Safetensors on disk: headers read and checked, files written tensor by tensor.

pub(crate) mod folder;
pub(crate) mod read;
pub(crate) mod write;

/// Element types of safetensors files that can occur in a language model's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Dtype {
    Bool,
    U8,
    I8,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
}

impl Dtype {
    const ALL: [(Dtype, &'static str, u64); 13] = [
        (Dtype::Bool, "BOOL", 1),
        (Dtype::U8, "U8", 1),
        (Dtype::I8, "I8", 1),
        (Dtype::I16, "I16", 2),
        (Dtype::U16, "U16", 2),
        (Dtype::F16, "F16", 2),
        (Dtype::Bf16, "BF16", 2),
        (Dtype::I32, "I32", 4),
        (Dtype::U32, "U32", 4),
        (Dtype::F32, "F32", 4),
        (Dtype::I64, "I64", 8),
        (Dtype::U64, "U64", 8),
        (Dtype::F64, "F64", 8),
    ];

    /// The type of that name in a safetensors header.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }

    /// The name in a safetensors header.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|entry| entry.0 == self).map_or("", |entry| entry.1)
    }

    /// Bytes per element.
    pub(crate) fn size(self) -> u64 {
        Self::ALL.iter().find(|entry| entry.0 == self).map_or(1, |entry| entry.2)
    }

    /// Whether this is a type that a dense weight may have.
    pub(crate) fn is_dense_weight(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::Bf16 | Dtype::F32)
    }
}
