//! Speed of each piece of a Whisper on cores: the shapes of the tiny and base models, a window of 30 s, 2 threads.
//!
//! What arithmetic limits is given in billions of multiply-accumulates per second, what memory limits in gigabytes per
//! second of weights or keys. `cargo run --release -p linnet-kernels --example whisper_bench [threads]`
#![allow(clippy::print_stdout)]

use std::{hint::black_box, time::Instant};

use linnet_kernels::{
    Activation, AffineWeight, Context, Convolution1d, ConvolutionWeight, CrossMemory, CrossRow, DenseWeight,
    FloatSlice, HeadLayout, Matrix, MemoryFormat, Precision, Product, coarse_full_attention, conv1d, cross_attention,
    cross_scores, full_attention, layer_norm, matmul,
};

type Failure = Box<dyn std::error::Error>;

/// Positions of a window of 30 s.
const POSITIONS: usize = 1500;
const VOCABULARY: usize = 51_865;
const HEAD_DIM: usize = 64;

fn main() -> Result<(), Failure> {
    let threads = std::env::args().nth(1).map_or(Ok(2), |argument| argument.parse())?;
    let context = Context::new(threads);
    println!("{threads} threads, {:?}", context.isa());
    for (name, width, layers) in [("tiny", 384, 4), ("base", 512, 6)] {
        println!("\n== {name}: {layers} layers of {width}");
        encoder(&context, width, layers)?;
        decoder(&context, width, layers)?;
    }
    Ok(())
}

/// The median and the shortest time of `work` in seconds, over at least 0.3 s and 5 runs.
fn time(mut work: impl FnMut() -> Result<(), Failure>) -> Result<(f64, f64), Failure> {
    work()?;
    let mut times = Vec::new();
    let begun = Instant::now();
    while times.len() < 5 || begun.elapsed().as_secs_f64() < 0.3 {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[0]))
}

/// Prints a line of a table: what it was, milliseconds, and `amount` per second of the shortest run.
fn report(what: &str, (median, best): (f64, f64), amount: f64, unit: &str) {
    println!("{what:<44} {:8.3} ms, best {:8.3} ms  {:7.1} {unit}", median * 1e3, best * 1e3, amount / best / 1e9);
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index.wrapping_mul(2_654_435_761) >> 8) % 2001) as f32 * 1e-3 - 1.0).collect()
}

fn dense(context: &Context, outputs: usize, inputs: usize, kind: &str) -> Result<Matrix, Failure> {
    let values = numbers(outputs * inputs);
    let bytes: Vec<u8> = match kind {
        "f32" => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        "f16" => values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect(),
    };
    let data = match kind {
        "f32" => FloatSlice::F32(&bytes),
        "f16" => FloatSlice::F16(&bytes),
        _ => FloatSlice::BF16(&bytes),
    };
    Ok(Matrix::from_dense(context, DenseWeight { out_features: outputs, in_features: inputs, data })?)
}

fn affine(context: &Context, outputs: usize, inputs: usize, group: usize) -> Result<Matrix, Failure> {
    let packed: Vec<u8> = (0..outputs * inputs).map(|index| (index.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
    let scale = half::f16::from_f32(0.0078);
    let bias = half::f16::from_f32(-128.0 * scale.to_f32());
    let count = outputs * inputs / group;
    let scales: Vec<u8> = (0..count).flat_map(|_| scale.to_le_bytes()).collect();
    let biases: Vec<u8> = (0..count).flat_map(|_| bias.to_le_bytes()).collect();
    let weight = AffineWeight {
        out_features: outputs,
        in_features: inputs,
        bits: 8,
        group_size: group,
        packed: &packed,
        scales: FloatSlice::F16(&scales),
        biases: FloatSlice::F16(&biases),
    };
    Ok(Matrix::from_affine(context, weight)?)
}

/// Weights as they are tried: name, precision of the product, and how to make one.
type Make = fn(&Context, usize, usize) -> Result<Matrix, Failure>;
const WEIGHTS: [(&str, Precision, Make); 6] = [
    ("f32", Precision::Exact, |context, outputs, inputs| dense(context, outputs, inputs, "f32")),
    ("f16", Precision::Exact, |context, outputs, inputs| dense(context, outputs, inputs, "f16")),
    ("bf16", Precision::Exact, |context, outputs, inputs| dense(context, outputs, inputs, "bf16")),
    ("int8 groups of 32, two terms", Precision::Fast, |context, outputs, inputs| affine(context, outputs, inputs, 32)),
    ("int8 groups of 64, two terms", Precision::Fast, |context, outputs, inputs| affine(context, outputs, inputs, 64)),
    ("int8 groups of 64, one term", Precision::OneTerm, |context, outputs, inputs| {
        affine(context, outputs, inputs, 64)
    }),
];

fn encoder(context: &Context, width: usize, layers: usize) -> Result<(), Failure> {
    let layout = HeadLayout { heads: width / HEAD_DIM, head_dim: HEAD_DIM };
    let scale = (HEAD_DIM as f32).powf(-0.5);
    let x = numbers(POSITIONS * 4 * width);
    let mut out = vec![0.0; POSITIONS * 4 * width];
    let bias = numbers(4 * width);
    let mut total = 0.0;

    for (channels, frames, stride) in [(80, 3000, 1), (width, 3000, 2)] {
        let bytes: Vec<u8> = numbers(width * 3 * channels).iter().flat_map(|value| value.to_le_bytes()).collect();
        let weight = ConvolutionWeight {
            out_channels: width,
            kernel: 3,
            in_channels: channels,
            data: FloatSlice::F32(&bytes),
            bias: Some(&bias[..width]),
            stride,
            padding: 1,
        };
        let convolution = Convolution1d::new(context, weight)?;
        let x = numbers(frames * channels);
        let rows = frames / stride;
        let mut out = vec![0.0; rows * width];
        let seconds = time(|| Ok(conv1d(context, &convolution, &x, Activation::Gelu, &mut out)?))?;
        total += seconds.0;
        report(
            &format!("conv {channels} to {width}, stride {stride}, gelu"),
            seconds,
            (rows * width * 3 * channels) as f64,
            "GMAC/s",
        );
    }

    for (name, precision, make) in WEIGHTS {
        let mut layer = 0.0;
        for (what, outputs, inputs, count, activation) in [
            ("q, k, v", width, width, 3, Activation::Identity),
            ("out", width, width, 1, Activation::Identity),
            ("widen, gelu", 4 * width, width, 1, Activation::Gelu),
            ("narrow", width, 4 * width, 1, Activation::Identity),
        ] {
            let weights = (0..count).map(|_| make(context, outputs, inputs)).collect::<Result<Vec<_>, _>>()?;
            let seconds = time(|| {
                let parts = out[..count * POSITIONS * outputs].chunks_exact_mut(POSITIONS * outputs);
                let mut products: Vec<Product<'_>> = weights
                    .iter()
                    .zip(parts)
                    .map(|(weight, out)| {
                        Product::new(weight, out).with_bias(Some(&bias[..outputs])).with_activation(activation)
                    })
                    .collect();
                Ok(matmul(context, precision, &x[..POSITIONS * inputs], POSITIONS, &mut products)?)
            })?;
            layer += seconds.0;
            let products = (POSITIONS * outputs * inputs * count) as f64;
            report(&format!("{name}: {what} {outputs} x {inputs}"), seconds, products, "GMAC/s");
        }
        println!("{name}: products of {layers} layers {:.1} ms", layer * layers as f64 * 1e3);
        if name == "f32" {
            total += layer * layers as f64;
        }
    }

    let lines = POSITIONS * width;
    let seconds = time(|| {
        Ok(full_attention(
            context,
            layout,
            scale,
            &x[..lines],
            &x[lines..2 * lines],
            &x[2 * lines..3 * lines],
            &mut out[..lines],
        )?)
    })?;
    total += seconds.0 * layers as f64;
    report("attention of 1500 over 1500", seconds, 2.0 * (POSITIONS * POSITIONS * width) as f64, "GMAC/s");
    let coarse = time(|| {
        let (query, keys, values) = (&x[..lines], &x[lines..2 * lines], &x[2 * lines..3 * lines]);
        Ok(coarse_full_attention(context, layout, scale, query, keys, values, &mut out[..lines])?)
    })?;
    report("the same, coarse", coarse, 2.0 * (POSITIONS * POSITIONS * width) as f64, "GMAC/s");
    let seconds = time(|| {
        layer_norm(context, &x[..lines], width, Some(&bias[..width]), Some(&bias[..width]), 1e-5, &mut out[..lines]);
        Ok(())
    })?;
    total += seconds.0 * (2 * layers + 1) as f64;
    report("layer norm", seconds, (8 * lines) as f64, "GB/s");
    let seconds = time(|| {
        black_box(CrossMemory::new(context, layout, &x[..lines], &x[lines..2 * lines], MemoryFormat::F16)?);
        Ok(())
    })?;
    report("memory of a layer", seconds, (8 * lines) as f64, "GB/s");
    println!("encoder in f32: {:.1} ms", total * 1e3);
    Ok(())
}

fn decoder(context: &Context, width: usize, layers: usize) -> Result<(), Failure> {
    let layout = HeadLayout { heads: width / HEAD_DIM, head_dim: HEAD_DIM };
    let scale = (HEAD_DIM as f32).powf(-0.5);
    let x = numbers(8 * 4 * width);
    let lines = numbers(POSITIONS * width);
    for format in [MemoryFormat::F32, MemoryFormat::F16] {
        let memories = (0..layers)
            .map(|_| CrossMemory::new(context, layout, &lines, &lines, format))
            .collect::<Result<Vec<_>, _>>()?;
        let bytes: usize = memories.iter().map(CrossMemory::bytes).sum();
        for rows in [1, 5] {
            let mut out = vec![0.0; rows * width];
            let seconds = time(|| {
                for memory in &memories {
                    let mut beams: Vec<CrossRow<'_>> = x
                        .chunks_exact(width)
                        .zip(out.chunks_exact_mut(width))
                        .map(|(query, output)| CrossRow { query, output, memory })
                        .collect();
                    cross_attention(context, scale, &mut beams)?;
                }
                Ok(())
            })?;
            report(&format!("cross attention {format:?}, {rows} rows, all layers"), seconds, bytes as f64, "GB/s");
        }
        if let Some(memory) = memories.first() {
            let mut scores = vec![0.0; layout.heads * POSITIONS];
            let heads: Vec<usize> = (0..layout.heads).collect();
            let seconds = time(|| Ok(cross_scores(context, scale, memory, &x[..width], &heads, &mut scores)?))?;
            report(&format!("cross scores {format:?}, a layer"), seconds, memory.bytes() as f64 / 2.0, "GB/s");
        }
    }
    for (name, precision, make) in WEIGHTS {
        let shapes = [(width, width, 6), (4 * width, width, 1), (width, 4 * width, 1)];
        let mut weights = Vec::new();
        for _ in 0..layers {
            for (outputs, inputs, count) in shapes {
                for _ in 0..count {
                    weights.push(make(context, outputs, inputs)?);
                }
            }
        }
        let head = make(context, VOCABULARY, width)?;
        let bytes: usize = weights.iter().map(Matrix::bytes).sum();
        for rows in [1, 5] {
            let mut out = vec![0.0; rows * VOCABULARY];
            let body = time(|| {
                for weight in &weights {
                    let (inputs, outputs) = (weight.in_features(), weight.out_features());
                    let product = Product::new(weight, &mut out[..rows * outputs]);
                    matmul(context, precision, &x[..rows * inputs], rows, &mut [product])?;
                }
                Ok(())
            })?;
            report(&format!("{name}: decoder layers, {rows} rows"), body, bytes as f64, "GB/s");
            let logits = time(|| {
                Ok(matmul(context, precision, &x[..rows * width], rows, &mut [Product::new(&head, &mut out)])?)
            })?;
            report(&format!("{name}: vocabulary, {rows} rows"), logits, head.bytes() as f64, "GB/s");
        }
    }
    Ok(())
}
