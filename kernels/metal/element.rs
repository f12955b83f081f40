//! Element types of kernel arguments.

use half::{bf16, f16};

/// The element type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
}

impl Element {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::U32 | Element::I32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }

    /// The name MLX writes into a generated signature.
    #[must_use]
    pub fn metal_name(self) -> &'static str {
        match self {
            Element::F32 => "float",
            Element::F16 => "float16_t",
            Element::Bf16 => "bfloat16_t",
            Element::U32 => "uint32_t",
            Element::I32 => "int32_t",
        }
    }

    /// Whether this is a floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Element::F32 | Element::F16 | Element::Bf16)
    }
}

/// Rounds to the precision of `element`, to nearest, ties to even.
#[must_use]
pub fn round_to(element: Element, value: f32) -> f32 {
    match element {
        Element::F16 => f16::from_f32(value).to_f32(),
        Element::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
