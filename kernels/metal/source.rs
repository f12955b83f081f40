//! A kernel's text.

/// A file of Metal source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path below `kernels/metal`, for messages and coverage.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// A kernel as MLX's `MetalKernel` takes it.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// The kernel's name, an identifier.
    pub name: &'static str,
    /// Names of the inputs, in order. MLX declares them for the body.
    pub inputs: &'static [&'static str],
    /// Names of the outputs, in order.
    pub outputs: &'static [&'static str],
    /// Functions the body uses, in order of inclusion.
    pub functions: &'static [SourceFile],
    /// The statements of the kernel.
    pub body: SourceFile,
}

impl KernelSource {
    /// The functions as one text: what MLX calls the header.
    #[must_use]
    pub fn header(&self) -> String {
        self.functions.iter().map(|file| file.text).collect::<Vec<_>>().join("\n")
    }
}

/// A file of this folder.
macro_rules! source_file {
    ($name:literal) => {
        $crate::metal::SourceFile { name: $name, text: include_str!($name) }
    };
}
pub(crate) use source_file;
