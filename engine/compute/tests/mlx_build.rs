//! MLX as it is linked here against the Python reference: one quantized product, bit for bit.
//!
//! The numbers are those of `mlx.core` 0.32.2 on its CPU build. A set-up that links another version, or mixes up a
//! type of the C interface, shows here before a model does.
#![cfg(all(feature = "mlx", target_os = "linux"))]
// clippy.toml allows these in test functions; what the tests share is part of them.
#![allow(clippy::unwrap_used)]

use mlx_rs::ops::{quantize, quantized_matmul};
use mlx_rs::{Array, Dtype};

/// `((index * step) mod modulus) / scale - 1`: exact in every type used here.
fn numbers(shape: &[i32], step: i32, modulus: i32, scale: f32) -> Array {
    let count: i32 = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|index| ((index * step) % modulus) as f32 / scale - 1.0).collect();
    Array::from_slice(&values, shape)
}

fn product(dtype: Dtype) -> Array {
    let weight = numbers(&[16, 64], 7919, 257, 128.0).as_dtype(dtype).unwrap();
    let x = numbers(&[2, 64], 104_729, 127, 64.0).as_dtype(dtype).unwrap();
    let (codes, scales, biases) = quantize(&weight, 64, 4).unwrap();
    let product = quantized_matmul(&x, &codes, &scales, &biases, true, 64, 4).unwrap();
    product.eval().unwrap();
    product
}

#[test]
fn quantized_matmul_gives_the_reference_bits_in_f32() {
    let found: Vec<u32> = product(Dtype::Float32).as_slice::<f32>().iter().map(|value| value.to_bits()).collect();
    let expected = [
        0xc026a000, 0xbfec2400, 0x3e5e0000, 0x40065e00, 0x4042c000, 0x40784b80, 0x409c3000, 0x40365b00, 0x3fbc8000,
        0xbf584c00, 0xbf82c000, 0x3fb07300, 0x3fee8000, 0x40563040, 0x4020e000, 0x3facc200, 0x3f1e8000, 0x4044d340,
        0x402b6000, 0x402ce180, 0x40060000, 0x3fb55280, 0xbe9b0000, 0xbed2a800, 0x3f884000, 0x3f213b00, 0x3ffd8000,
        0x4023a700, 0x3fdfc000, 0x3fb5d180, 0x3fcbc000, 0xbfca0b00,
    ];
    assert_eq!(found, expected);
}

#[test]
fn quantized_matmul_gives_the_reference_bits_in_f16() {
    let product = product(Dtype::Float16);
    let found: Vec<u16> = product.as_slice::<half::f16>().iter().map(|value| value.to_bits()).collect();
    let expected = [
        0xc135, 0xbf60, 0x32f0, 0x4032, 0x4216, 0x43c2, 0x44e2, 0x41b4, 0x3de4, 0xbac1, 0xbc16, 0x3d86, 0x3f74, 0x42b8,
        0x4107, 0x3d63, 0x38f4, 0x4225, 0x415b, 0x4169, 0x4030, 0x3da8, 0xb4d8, 0xb68f, 0x3c42, 0x3910, 0x3fec, 0x4119,
        0x3efe, 0x3dac, 0x3e5e, 0xbe4c,
    ];
    assert_eq!(found, expected);
}

#[test]
fn quantized_matmul_gives_the_reference_bits_in_bf16() {
    let product = product(Dtype::Bfloat16);
    let found: Vec<u16> = product.as_slice::<half::bf16>().iter().map(|value| value.to_bits()).collect();
    let expected = [
        0xc028, 0xbfea, 0x3e58, 0x4005, 0x4044, 0x4077, 0x409c, 0x4035, 0x3fbc, 0xbf56, 0xbf82, 0x3fb4, 0x3fed, 0x405a,
        0x4023, 0x3fae, 0x3f25, 0x4042, 0x402a, 0x4030, 0x4006, 0x3fb7, 0xbe9e, 0xbedb, 0x3f8a, 0x3f1f, 0x4000, 0x4022,
        0x3fdc, 0x3fb7, 0x3fca, 0xbfca,
    ];
    assert_eq!(found, expected);
}
