//! Which instruction set the kernels use, found at run time.

/// An instruction-set level that has kernels of its own. Levels of one architecture are ordered: each includes those
/// before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: the reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with the 256-bit VNNI byte products (`avxvnni`).
    Avx2Vnni,
    /// AVX-512 F, BW, VL, DQ with VNNI.
    Avx512Vnni,
    /// [`Isa::Avx512Vnni`] with BF16 products.
    Avx512Bf16,
    /// Arm NEON.
    Neon,
    /// NEON with the byte dot product (`dotprod`).
    NeonDotprod,
    /// [`Isa::NeonDotprod`] with 8-bit matrix products (`i8mm`).
    NeonI8mm,
}

impl Isa {
    /// The best level this machine has.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Scalar)
    }

    /// All levels this machine can run, the plainest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                levels.push(Self::Avx2);
                if has!("avxvnni") {
                    levels.push(Self::Avx2Vnni);
                }
                let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
                if avx512 && has!("avx512vnni") {
                    levels.push(Self::Avx512Vnni);
                    if has!("avx512bf16") {
                        levels.push(Self::Avx512Bf16);
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as has;
            levels.push(Self::Neon);
            if has!("dotprod") {
                levels.push(Self::NeonDotprod);
                if has!("i8mm") {
                    levels.push(Self::NeonI8mm);
                }
            }
        }
        levels
    }
}

#[cfg(all(test, target_arch = "aarch64"))]
mod tests {
    use super::Isa;

    // The kernels' tests run on every level that is found; one that is not would go untested without a word.
    #[test]
    #[ignore = "needs a processor with all extensions, as `make test-arm` emulates it"]
    fn every_level_for_arm_is_found() {
        assert_eq!(Isa::available(), [Isa::Scalar, Isa::Neon, Isa::NeonDotprod, Isa::NeonI8mm]);
    }
}
