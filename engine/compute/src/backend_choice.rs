//! Which backend a model runs on.

use std::{fmt, str::FromStr};

/// A backend by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendChoice {
    /// The processor's cores, on linnet-kernels.
    Cpu,
    /// Apple's MLX: the GPU of a Mac. Elsewhere it serves to compare with the reference.
    Mlx,
}

impl BackendChoice {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Mlx];

    /// Whether this build has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Mlx => cfg!(feature = "mlx"),
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Mlx => "mlx",
        }
    }
}

impl Default for BackendChoice {
    /// MLX on Apple silicon, the cores elsewhere.
    fn default() -> Self {
        if cfg!(all(target_os = "macos", target_arch = "aarch64", feature = "mlx")) { Self::Mlx } else { Self::Cpu }
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A name that no backend has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no backend {0:?}; there are cpu and mlx")]
pub struct UnknownBackend(String);

impl FromStr for BackendChoice {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        Self::ALL.into_iter().find(|choice| choice.name() == name).ok_or_else(|| UnknownBackend(name.into()))
    }
}
