//! Element types of stored tensors.

/// How a tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    F16,
    /// bfloat16.
    BF16,
    /// 32-bit words, which hold packed quantized weights.
    U32,
}

impl Dtype {
    /// Bytes per element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Whether elements are floating-point numbers.
    #[must_use]
    pub fn is_float(self) -> bool {
        self != Self::U32
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::U32 => "uint32",
        })
    }
}
