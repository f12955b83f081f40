//! Arrays that go in and come out.

use std::ops::Range;

use half::{bf16, f16};
use linnet_kernels::metal::Element;

/// An array on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its shape; empty for a scalar.
    pub shape: Vec<usize>,
    /// Its element type.
    pub element: Element,
    /// By how many elements an index of each axis moves on.
    pub strides: Vec<usize>,
    /// Memory from its first element to its last, native byte order.
    pub bytes: Vec<u8>,
}

impl Argument {
    /// Floats, rounded to `element` (to nearest, ties to even).
    ///
    /// # Panics
    /// When the shape does not fit, or `element` is an integer: tests only.
    #[must_use]
    pub fn floats(element: Element, shape: &[usize], values: &[f32]) -> Argument {
        let bytes = values.iter().flat_map(|&value| float_bytes(element, value)).collect();
        Argument::new(element, shape, bytes)
    }

    /// 32-bit unsigned integers.
    ///
    /// # Panics
    /// When the shape does not fit.
    #[must_use]
    pub fn u32(shape: &[usize], values: &[u32]) -> Argument {
        Argument::new(Element::U32, shape, values.iter().flat_map(|value| value.to_ne_bytes()).collect())
    }

    /// 32-bit signed integers.
    ///
    /// # Panics
    /// When the shape does not fit.
    #[must_use]
    pub fn i32(shape: &[usize], values: &[i32]) -> Argument {
        Argument::new(Element::I32, shape, values.iter().flat_map(|value| value.to_ne_bytes()).collect())
    }

    /// A float scalar.
    #[must_use]
    pub fn scalar(value: f32) -> Argument {
        Argument::floats(Element::F32, &[], &[value])
    }

    fn new(element: Element, shape: &[usize], bytes: Vec<u8>) -> Argument {
        assert_eq!(shape.iter().product::<usize>() * element.bytes(), bytes.len(), "shape {shape:?}");
        Argument::contiguous(element, shape, bytes)
    }

    pub(crate) fn contiguous(element: Element, shape: &[usize], bytes: Vec<u8>) -> Argument {
        let strides = (1..=shape.len()).map(|axis| shape[axis..].iter().product()).collect();
        Argument { shape: shape.to_vec(), element, strides, bytes }
    }

    /// A part along one axis, as a view: what lies between its elements stays there.
    ///
    /// # Panics
    /// When there is no such part, or it is empty.
    #[must_use]
    pub fn sliced(&self, axis: usize, range: Range<usize>) -> Argument {
        assert!(range.start < range.end && range.end <= self.shape[axis], "{range:?} of {:?}", self.shape);
        let mut shape = self.shape.clone();
        shape[axis] = range.len();
        let first = range.start * self.strides[axis];
        let last = first + shape.iter().zip(&self.strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>();
        let size = self.element.bytes();
        let bytes = self.bytes[first * size..(last + 1) * size].to_vec();
        Argument { shape, element: self.element, strides: self.strides.clone(), bytes }
    }

    /// How many elements it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements as floats; integers are converted.
    ///
    /// # Panics
    /// When it is a view.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        match self.element {
            Element::F32 => self.words(f32::from_ne_bytes),
            Element::F16 => self.words(|bytes| f16::from_ne_bytes(bytes).to_f32()),
            Element::Bf16 => self.words(|bytes| bf16::from_ne_bytes(bytes).to_f32()),
            Element::U32 => self.words(|bytes| u32::from_ne_bytes(bytes) as f32),
            Element::I32 => self.words(|bytes| i32::from_ne_bytes(bytes) as f32),
        }
    }

    /// The elements of an array of [`Element::U32`].
    ///
    /// # Panics
    /// When it has another type, or is a view.
    #[must_use]
    pub fn to_u32(&self) -> Vec<u32> {
        assert_eq!(self.element, Element::U32);
        self.words(u32::from_ne_bytes)
    }

    fn words<const N: usize, T>(&self, read: impl Fn([u8; N]) -> T) -> Vec<T> {
        assert_eq!(self.len() * N, self.bytes.len(), "only whole arrays are read");
        let (words, _) = self.bytes.as_chunks::<N>();
        words.iter().map(|&word| read(word)).collect()
    }
}

fn float_bytes(element: Element, value: f32) -> Vec<u8> {
    match element {
        Element::F32 => value.to_ne_bytes().to_vec(),
        Element::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
        Element::Bf16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
        Element::U32 | Element::I32 => unreachable!("floats are stored as floats"),
    }
}
