//! Floating-point data as it lies in a file: raw bytes of one of three types.

use half::{bf16, f16};

/// Little-endian floating-point numbers in raw bytes, at any alignment.
#[derive(Debug, Clone, Copy)]
pub enum FloatSlice<'a> {
    /// IEEE single precision, four bytes each.
    F32(&'a [u8]),
    /// IEEE half precision, two bytes each.
    F16(&'a [u8]),
    /// Brain floating point: the upper half of a single, two bytes each.
    BF16(&'a [u8]),
}

impl FloatSlice<'_> {
    /// How many numbers there are (a torn last one not counted).
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(bytes) => bytes.len() / 4,
            Self::F16(bytes) | Self::BF16(bytes) => bytes.len() / 2,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number `index`, widened (exactly) to single precision.
    ///
    /// # Panics
    /// When `index` is not below [`FloatSlice::len`].
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Self::F32(bytes) => {
                let at = index * 4;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
            Self::F16(bytes) => f16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f32(),
            Self::BF16(bytes) => bf16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]]).to_f32(),
        }
    }
}
