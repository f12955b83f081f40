//! One run of a kernel, as data.

use thiserror::Error;

use super::{Element, KernelSource};

/// A template parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TemplateValue {
    /// A type.
    Element(Element),
    /// An `int`.
    Int(i32),
    /// A `bool`.
    Bool(bool),
}

/// The shape and type of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its element type.
    pub element: Element,
}

/// Everything about a run but its inputs. The kernel writes every element of every output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub kernel: &'static KernelSource,
    /// Template parameters, in order.
    pub template: Vec<(&'static str, TemplateValue)>,
    /// The outputs, in the order of [`KernelSource::outputs`].
    pub outputs: Vec<Output>,
    /// Threads in all, by axis.
    pub grid: [u32; 3],
    /// Threads of one group, by axis; at most 1024 in all.
    pub threadgroup: [u32; 3],
}

/// Why a kernel cannot serve a request. The caller then takes the composed form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A figure lies outside of what the kernel is written for.
    #[error("{kernel} does not do {what} {got}: it does {supported}; use the composed form")]
    Unsupported {
        /// The kernel.
        kernel: &'static str,
        /// The figure's name.
        what: &'static str,
        /// Its value.
        got: usize,
        /// What is supported.
        supported: &'static str,
    },
    /// An element type that the kernel is not written for.
    #[error("{kernel} does not take {what} of {got:?}: it takes {supported}; use the composed form")]
    UnsupportedElement {
        /// The kernel.
        kernel: &'static str,
        /// The argument.
        what: &'static str,
        /// Its type.
        got: Element,
        /// What is supported.
        supported: &'static str,
    },
    /// Figures that contradict each other.
    #[error("{kernel}: {what} {got} is not a multiple of {factor_name} {factor}")]
    NotAMultiple {
        /// The kernel.
        kernel: &'static str,
        /// The figure's name.
        what: &'static str,
        /// Its value.
        got: usize,
        /// The other figure's name.
        factor_name: &'static str,
        /// Its value.
        factor: usize,
    },
}
