//! SIMD kernels for transformer inference.
