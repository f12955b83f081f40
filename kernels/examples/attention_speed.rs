//! Prints how fast attention and the small kernels of a decode step are on this machine.
//!
//! `cargo run --release -p linnet-kernels --example attention_speed -- [threads] [heads kv_heads head_dim]`; the default
//! shape is SmolLM2-135M's. Each figure is the best of many runs.

#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use linnet_kernels::{
    Activation, AffinePages, AttentionError, AttentionOptions, AttentionRow, Context, PAGE_TOKENS, Page, PageFormat,
    PageGeometry, RopeTable, add_in_place, append, append_affine, argmax, attention, gated, rms_norm, rope,
};

fn main() -> Result<(), AttentionError> {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let argument = |index: usize, default: usize| arguments.get(index).copied().unwrap_or(default);
    let ctx = Context::new(argument(0, 2));
    let (heads, kv_heads, head_dim) = (argument(1, 9), argument(2, 3), argument(3, 64));
    let geometry = PageGeometry { kv_heads, head_dim };
    println!(
        "{:?}, {} threads, {heads} heads, {kv_heads} KV heads, head dimension {head_dim}",
        ctx.isa(),
        ctx.pool().threads()
    );

    let options = AttentionOptions {
        heads,
        geometry,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
        softcap: None,
        sinks: None,
    };
    let affine = |bits| PageFormat::Affine(AffinePages { bits, group: 64 });
    for (name, format) in [("f16", PageFormat::F16), ("8 bits", affine(8)), ("4 bits", affine(4))] {
        if let PageFormat::Affine(affine) = format
            && !affine.fits(geometry)
        {
            continue;
        }
        for context in [1, 32, 128, 512, 1024, 4096, 16_384] {
            let seconds = time_attention(&ctx, &options, format, context - 1, 1)?;
            let bytes = (context.div_ceil(PAGE_TOKENS) * geometry.elements_as(format) * 2) as f64;
            println!(
                "{name}, decode at {context:6}: {:9.2} us, {:6.1} GB/s of cache",
                seconds * 1e6,
                bytes / seconds * 1e-9
            );
        }
    }
    for length in [128, 512, 2048, 4096] {
        let seconds = time_attention(&ctx, &options, PageFormat::F16, 0, length)?;
        // Two products of head_dim multiply-adds for each visible pair.
        let operations = (heads * length * (length + 1) / 2 * 4 * head_dim) as f64;
        println!("prefill of {length:5}: {:9.1} us, {:6.1} GFLOP/s", seconds * 1e6, operations / seconds * 1e-9);
    }
    small_kernels(&ctx, heads, head_dim);
    Ok(())
}

fn time_attention(
    ctx: &Context,
    options: &AttentionOptions<'_>,
    format: PageFormat,
    start: usize,
    length: usize,
) -> Result<f64, AttentionError> {
    let PageGeometry { kv_heads, head_dim } = options.geometry;
    let tokens = start + length;
    let noise = |count: usize| (0..count).map(|index| (index as f32 * 0.618).sin()).collect::<Vec<f32>>();
    let keys = noise(PAGE_TOKENS * kv_heads * head_dim);
    let pages: Vec<Vec<u16>> = (0..tokens.div_ceil(PAGE_TOKENS))
        .map(|_| {
            let mut page = vec![0; options.geometry.elements_as(format)];
            match format {
                PageFormat::F16 => append(options.geometry, &mut page, 0, &keys, &keys, PAGE_TOKENS),
                PageFormat::Affine(affine) => {
                    append_affine(options.geometry, affine, &mut page, 0, (&keys, &keys), PAGE_TOKENS);
                }
            }
            page
        })
        .collect();
    let pages: Vec<Page<'_>> = pages.iter().map(|page| Page { format, data: page }).collect();
    let query = noise(length * options.heads * head_dim);
    let mut output = vec![0.0; query.len()];
    let mut failure = Ok(());
    let seconds = best(&mut || {
        let row = AttentionRow { query: &query, output: &mut output, start, length, pages: &pages, first_position: 0 };
        if let Err(error) = attention(ctx, options, &mut [row]) {
            failure = Err(error);
        }
    });
    failure.map(|()| seconds)
}

fn small_kernels(ctx: &Context, heads: usize, head_dim: usize) {
    let hidden = heads * head_dim;
    let x: Vec<f32> = (0..hidden).map(|index| (index as f32).sin()).collect();
    let mut out = x.clone();
    let print = |name: &str, work: &mut dyn FnMut()| println!("{name:24} {:8.3} us", best(work) * 1e6);
    print("rms_norm, hidden", &mut || rms_norm(ctx, &x, hidden, Some(&x), 1e-5, &mut out));
    print("add, hidden", &mut || add_in_place(ctx, &mut out, &x));
    let table = RopeTable::new((0..head_dim / 2).map(|pair| 0.9f32.powi(pair as i32)).collect(), false, 1.0);
    print("rope, heads", &mut || rope(ctx, &mut out, heads, head_dim, &[777], &table));
    let up: Vec<f32> = (0..1536).map(|index| (index as f32).cos()).collect();
    let mut gate = up.clone();
    print("gated silu, 1536", &mut || {
        gate.copy_from_slice(&up);
        gated(ctx, Activation::Silu, &mut gate, &up);
    });
    let logits: Vec<f32> = (0..49_152).map(|index| (index as f32).sin()).collect();
    print("argmax, 49152", &mut || {
        std::hint::black_box(argmax(std::hint::black_box(&logits)));
    });
    let geometry = PageGeometry { kv_heads: 3, head_dim };
    let mut page = vec![0; geometry.elements()];
    print("append, 3 KV heads", &mut || append(geometry, &mut page, 17, &up[..3 * head_dim], &up[..3 * head_dim], 1));
}

/// The shortest time of one run, over at least 20 runs and about a third of a second.
fn best(work: &mut dyn FnMut()) -> f64 {
    let begun = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 20 || begun.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed());
        runs += 1;
    }
    best.as_secs_f64()
}
