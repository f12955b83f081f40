//! Speed of the matrix products on the shapes of a small llama, per instruction set and number of threads.
//!
//! One row: gigabytes of weights per second, beside what a plain sum over memory reads. 512 rows: billions of
//! multiply-accumulates per second. `cargo run --release -p linnet-kernels --example matmul_bench [threads ...]`
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::{hint::black_box, sync::Mutex, time::Instant};

use linnet_kernels::{
    Activation, AffineWeight, Context, DenseWeight, FloatSlice, Isa, Matrix, Precision, Product, matmul, matmul_gated,
};

const LAYERS: usize = 30;

fn main() {
    let mut threads: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    if threads.is_empty() {
        threads = vec![1, 2];
    }
    for &threads in &threads {
        let bandwidth = read_bandwidth(threads);
        println!("\n== {threads} threads; plain read {bandwidth:.1} GB/s");
        for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
            let context = Context::with_isa(isa, threads);
            println!("-- {isa:?}");
            dispatch(&context);
            model(&context, "4-bit, symmetric, groups of 32", 4, 32, true, bandwidth);
            model(&context, "4-bit, affine, groups of 32", 4, 32, false, bandwidth);
            model(&context, "4-bit, affine, groups of 64", 4, 64, false, bandwidth);
            for bits in [2, 3, 5, 6, 8] {
                shape(&context, &format!("{bits}-bit affine g64"), &affine(&context, 1536, 576, bits, 64, false));
            }
            for kind in ["f32", "f16", "bf16"] {
                shape(&context, kind, &dense(&context, 1536, 576, kind));
            }
        }
    }
}

/// The median time of `work` in seconds, over at least 0.15 s and 5 runs.
fn time(mut work: impl FnMut()) -> f64 {
    work();
    let mut times = Vec::new();
    let begun = Instant::now();
    while times.len() < 5 || (begun.elapsed().as_secs_f64() < 0.15 && times.len() < 10_000) {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn read_bandwidth(threads: usize) -> f64 {
    let data: Vec<u64> = (0..32u64 << 20).collect();
    let context = Context::new(threads);
    let parts: Vec<&[u64]> = data.chunks(1 << 14).collect();
    let seconds = time(|| {
        let total = Mutex::new(0u64);
        context.pool().for_each(parts.len(), &|part| {
            let sum = parts[part].iter().fold(0u64, |sum, value| sum.wrapping_add(*value));
            *total.lock().expect("no panic") ^= sum;
        });
        black_box(total.into_inner().expect("no panic"));
    });
    (data.len() * 8) as f64 / seconds / 1e9
}

fn dispatch(context: &Context) {
    let seconds = time(|| {
        for _ in 0..100 {
            context.pool().for_each(2, &|task| {
                black_box(task);
            });
        }
    });
    println!("empty region: {:.2} us", seconds / 100.0 * 1e6);
}

fn affine(context: &Context, outputs: usize, inputs: usize, bits: u32, group: usize, symmetric: bool) -> Matrix {
    let packed: Vec<u8> =
        (0..outputs * inputs * bits as usize / 8).map(|index| (index * 2_654_435_761 >> 7) as u8).collect();
    let scale = half::f16::from_f32(0.0127);
    let center = (1 << (bits - 1)) as f32;
    let bias = half::f16::from_f32(if symmetric { -center * scale.to_f32() } else { -0.09 });
    let count = outputs * inputs / group;
    let scales: Vec<u8> = (0..count).flat_map(|_| scale.to_le_bytes()).collect();
    let biases: Vec<u8> = (0..count).flat_map(|_| bias.to_le_bytes()).collect();
    let weight = AffineWeight {
        out_features: outputs,
        in_features: inputs,
        bits,
        group_size: group,
        packed: &packed,
        scales: FloatSlice::F16(&scales),
        biases: FloatSlice::F16(&biases),
    };
    Matrix::from_affine(context, weight).expect("a well-formed weight")
}

fn dense(context: &Context, outputs: usize, inputs: usize, kind: &str) -> Matrix {
    let bytes = vec![0u8; outputs * inputs * if kind == "f32" { 4 } else { 2 }];
    let data = match kind {
        "f32" => FloatSlice::F32(&bytes),
        "f16" => FloatSlice::F16(&bytes),
        _ => FloatSlice::BF16(&bytes),
    };
    Matrix::from_dense(context, DenseWeight { out_features: outputs, in_features: inputs, data })
        .expect("a well-formed weight")
}

struct Layer {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    o: Matrix,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// All products of one step of SmolLM2-135M, weights streamed from memory as in real decoding.
fn model(context: &Context, name: &str, bits: u32, group: usize, symmetric: bool, bandwidth: f64) {
    let make = |outputs, inputs| affine(context, outputs, inputs, bits, group, symmetric);
    let layers: Vec<Layer> = (0..LAYERS)
        .map(|_| Layer {
            q: make(576, 576),
            k: make(192, 576),
            v: make(192, 576),
            o: make(576, 576),
            gate: make(1536, 576),
            up: make(1536, 576),
            down: make(576, 1536),
        })
        .collect();
    let head = affine(context, 49152, 576, 8, 32, true);
    let layer_bytes: usize = layers
        .iter()
        .map(|l| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down].map(Matrix::bytes).iter().sum::<usize>())
        .sum();
    let products = LAYERS * (576 * 960 + 576 * 576 + 3 * 576 * 1536);
    println!("{name}: {:.1} MB + head {:.1} MB", layer_bytes as f64 / 1e6, head.bytes() as f64 / 1e6);
    for precision in [Precision::Fast, Precision::Exact] {
        let rows_tried: &[usize] = if precision == Precision::Fast { &[1, 2, 4, 8, 16, 32, 512] } else { &[1, 512] };
        for &rows in rows_tried {
            let x = vec![0.37f32; rows * 1536];
            let (mut q, mut k, mut v) = (vec![0.0; rows * 576], vec![0.0; rows * 192], vec![0.0; rows * 192]);
            let mut hidden = vec![0.0; rows * 1536];
            let mut logits = vec![0.0; 49152];
            let narrow = rows * 576;
            let body = time(|| {
                for l in &layers {
                    let mut products =
                        [Product::new(&l.q, &mut q), Product::new(&l.k, &mut k), Product::new(&l.v, &mut v)];
                    matmul(context, precision, &x[..narrow], rows, &mut products).expect("shapes fit");
                    matmul(context, precision, &x[..narrow], rows, &mut [Product::new(&l.o, &mut q)])
                        .expect("shapes fit");
                    matmul_gated(context, precision, &x[..narrow], rows, &l.gate, &l.up, Activation::Silu, &mut hidden)
                        .expect("shapes fit");
                    matmul(context, precision, &x, rows, &mut [Product::new(&l.down, &mut q)]).expect("shapes fit");
                }
            });
            let last = time(|| {
                matmul(context, precision, &x[..576], 1, &mut [Product::new(&head, &mut logits)]).expect("shapes fit");
            });
            if rows == 1 {
                println!(
                    "  {precision:?} 1 row: body {:.2} ms {:.1} GB/s ({:.0}%), head {:.2} ms {:.1} GB/s ({:.0}%): {:.0} tok/s",
                    body * 1e3,
                    layer_bytes as f64 / body / 1e9,
                    layer_bytes as f64 / body / 1e7 / bandwidth,
                    last * 1e3,
                    head.bytes() as f64 / last / 1e9,
                    head.bytes() as f64 / last / 1e7 / bandwidth,
                    1.0 / (body + last)
                );
            } else {
                println!(
                    "  {precision:?} {rows} rows: {:.2} ms, {:.1} GMAC/s, {:.0} tok/s without the head",
                    body * 1e3,
                    (products * rows) as f64 / body / 1e9,
                    rows as f64 / body
                );
            }
        }
    }
}

fn shape(context: &Context, name: &str, matrix: &Matrix) {
    let (inputs, outputs) = (matrix.in_features(), matrix.out_features());
    print!("{name} {outputs}x{inputs} (in cache):");
    for rows in [1, 512] {
        let x = vec![0.37f32; rows * inputs];
        let mut output = vec![0.0; rows * outputs];
        let seconds = time(|| {
            matmul(context, Precision::Fast, &x, rows, &mut [Product::new(matrix, &mut output)]).expect("shapes fit");
        });
        if rows == 1 {
            print!(" 1 row {:.1} GB/s,", matrix.bytes() as f64 / seconds / 1e9);
        } else {
            println!(" {rows} rows {:.1} GMAC/s", (rows * inputs * outputs) as f64 / seconds / 1e9);
        }
    }
}
