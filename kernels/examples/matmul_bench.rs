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
            if std::env::var_os("ONLY_SHAPES").is_none() {
                model(&context, "4-bit, symmetric, groups of 32", 4, 32, true, bandwidth);
                model(&context, "4-bit, affine, groups of 32", 4, 32, false, bandwidth);
                model(&context, "4-bit, affine, groups of 64", 4, 64, false, bandwidth);
            }
            for (bits, group, symmetric) in [
                (4, 32, true),
                (4, 32, false),
                (4, 64, false),
                (2, 64, false),
                (3, 64, false),
                (5, 64, false),
                (6, 64, false),
                (8, 32, true),
                (8, 64, false),
            ] {
                let name = format!("{bits}-bit g{group}{}", if symmetric { " symmetric" } else { "" });
                shape(&context, &name, &affine(&context, 256, 576, bits, group, symmetric));
            }
            for kind in ["f32", "f16", "bf16"] {
                shape(&context, kind, &dense(&context, 256, 576, kind));
            }
        }
    }
}

/// The shortest time of `work` in seconds, over at least 0.2 s and 5 runs: what the code can do when neighbours leave the
/// machine alone for a moment. (Tables of a quiet machine belong to `linnet bench`, which takes medians.)
fn time(mut work: impl FnMut()) -> f64 {
    work();
    let mut best = f64::INFINITY;
    let begun = Instant::now();
    let mut runs = 0;
    while runs < 5 || begun.elapsed().as_secs_f64() < 0.2 {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    best
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
        (0..outputs * inputs * bits as usize / 8).map(|index| ((index * 2_654_435_761) >> 7) as u8).collect();
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

/// The products of decoding with SmolLM2-135M, weights streamed from memory as there, and of its prefill, layer by layer.
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
    let all = |l: &Layer| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down].map(Matrix::bytes).iter().sum::<usize>();
    let layer_bytes: usize = layers.iter().map(all).sum();
    let products = 576 * 960 + 576 * 576 + 3 * 576 * 1536;
    println!("{name}: {:.1} MB + head {:.1} MB", layer_bytes as f64 / 1e6, head.bytes() as f64 / 1e6);
    for precision in [Precision::Fast, Precision::Exact] {
        let rows_tried: &[usize] =
            if precision == Precision::Fast { &[1, 2, 4, 8, 16, 32, 128, 512] } else { &[1, 128] };
        for &rows in rows_tried {
            let x = vec![0.37f32; rows * 1536];
            let (mut q, mut k, mut v) = (vec![0.0; rows * 576], vec![0.0; rows * 192], vec![0.0; rows * 192]);
            let mut hidden = vec![0.0; rows * 1536];
            let mut logits = vec![0.0; 49152];
            let narrow = &x[..rows * 576];
            let mut step = |l: &Layer, which: usize| {
                match which {
                    0 => {
                        let mut products =
                            [Product::new(&l.q, &mut q), Product::new(&l.k, &mut k), Product::new(&l.v, &mut v)];
                        matmul(context, precision, narrow, rows, &mut products)
                    }
                    1 => matmul(context, precision, narrow, rows, &mut [Product::new(&l.o, &mut q)]),
                    2 => matmul_gated(context, precision, narrow, rows, &l.gate, &l.up, Activation::Silu, &mut hidden),
                    _ => matmul(context, precision, &x, rows, &mut [Product::new(&l.down, &mut q)]),
                }
                .expect("shapes fit");
            };
            if rows == 1 {
                let body = time(|| layers.iter().for_each(|layer| (0..4).for_each(|which| step(layer, which))));
                let last = time(|| {
                    matmul(context, precision, narrow, 1, &mut [Product::new(&head, &mut logits)]).expect("shapes fit");
                });
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
                // One product at a time: short enough to find a quiet moment. Each time another layer's weights.
                let parts = [0, 1, 2, 3].map(|which| {
                    let mut next = 0;
                    time(|| {
                        step(&layers[next % LAYERS], which);
                        next += 1;
                    })
                });
                let layer: f64 = parts.iter().sum();
                println!(
                    "  {precision:?} {rows} rows: {:.2} ms, {:.1} GMAC/s, {:.0} tok/s without the head; us: {:.0?}",
                    layer * LAYERS as f64 * 1e3,
                    (products * rows) as f64 / layer / 1e9,
                    rows as f64 / layer / LAYERS as f64,
                    parts.map(|part| part * 1e6)
                );
            }
        }
    }
}

/// One small matrix that stays in the cache: what the kernels themselves can do.
fn shape(context: &Context, name: &str, matrix: &Matrix) {
    let (inputs, outputs) = (matrix.in_features(), matrix.out_features());
    print!("{name} {outputs}x{inputs} in cache:");
    for precision in [Precision::Fast, Precision::Exact] {
        print!(" {precision:?}");
        for rows in [1, 4, 8, 24, 96] {
            let x = vec![0.37f32; rows * inputs];
            let mut output = vec![0.0; rows * outputs];
            let seconds = time(|| {
                matmul(context, precision, &x, rows, &mut [Product::new(matrix, &mut output)]).expect("shapes fit");
            });
            if rows == 1 {
                print!(" 1 row {:.1} GB/s;", matrix.bytes() as f64 / seconds / 1e9);
            } else {
                print!(" {rows}: {:.1}", (rows * inputs * outputs) as f64 / seconds / 1e9);
            }
        }
        print!(" GMAC/s");
    }
    println!();
}
