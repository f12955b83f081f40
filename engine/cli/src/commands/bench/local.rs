<<<<<<< HEAD
//! `linnet bench local`: prefill and decode of one model in this process.

use super::machine::Machine;
use crate::{models, output};
use anyhow::Context;
use clap::Args;
use linnet_library::Store;
use linnet_runtime::{EngineOptions, GenerationEvent, GenerationRequest, LoadOptions, LoadedModel};
use serde::Serialize;
use std::time::Instant;

/// Measure how fast a model reads and writes in this process
///
/// Prefill is a prompt of pseudo-random tokens; decode goes on from a short prompt. One run of each is made and not
/// counted, then --runs of each; figures are medians.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  linnet bench local starter --prompt 128,512 --streams 1,4,8 --threads 1,2")]
pub(crate) struct Arguments {
    /// The model [default: the only one installed, or the starter]
    #[arg(value_name = "NAME")]
    model: Option<String>,
    /// Prompt sizes in tokens
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..))]
    generate: u32,
    /// Streams that decode at once
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    streams: Vec<usize>,
    /// Threads to compute on [default: one per physical core]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Runs that count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Compute exactly, in 32-bit floats
    #[arg(long)]
    exact: bool,
    /// Print JSON
=======
//! `linnet bench local`: how fast a model reads prompts and writes answers here.

use anyhow::ensure;
use linnet_library::Store;
use linnet_runtime::EngineOptions;
use serde::Serialize;

use super::measure::{Bench, Figure};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::models::{self, RunArguments};
use crate::output;

/// Arguments of `linnet bench local`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prefill is how fast a prompt is read, decode how fast an answer is written, both in tokens per
second; with several streams, all answers together. Figures are medians of the runs.

Example:
  linnet bench local starter --threads 1,2 --prompt 512,2048 --streams 1,4")]
pub(crate) struct LocalArguments {
    /// The model [default: the only one installed, else the starter]
    model: Option<String>,
    /// Lengths of prompts, in tokens
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [512])]
    prompt: Vec<usize>,
    /// Length of the answers, in tokens; 0 measures prefill alone
    #[arg(long, value_name = "N", default_value_t = 128)]
    generate: usize,
    /// Numbers of answers at once
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1])]
    streams: Vec<usize>,
    /// Numbers of threads [default: one per physical core]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    threads: Vec<u16>,
    /// How often each figure is taken
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Compute with full precision instead of 8-bit activations
    #[arg(long)]
    exact: bool,
    /// Print JSON, with every single run and facts about the machine
>>>>>>> a
    #[arg(long)]
    json: bool,
}

<<<<<<< HEAD
/// A whole report.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    machine: Machine,
    exact: bool,
    /// Of the first row of each kind, for scripts that ask for one.
    prefill_tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
    rows: Vec<Row>,
}

/// One thing measured.
#[derive(Debug, Serialize)]
struct Row {
    work: Work,
    tokens: usize,
    streams: usize,
    threads: usize,
    /// The median over the runs, of all streams together.
    tokens_per_second: f64,
    runs: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Work {
    Prefill,
    Decode,
}

/// Tokens before a decode, so that attention has something to look at.
const DECODE_PROMPT: usize = 16;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for (option, values) in
        [("--prompt", &arguments.prompt), ("--streams", &arguments.streams), ("--threads", &arguments.threads)]
    {
        anyhow::ensure!(values.iter().all(|&value| value > 0), "{option} must be at least 1");
    }
    let store = Store::from_environment()?;
    let entry = models::resolve(&store, arguments.model.as_deref())?;
    let threads = if arguments.threads.is_empty() {
        vec![linnet_compute::cpu::physical_cores()]
    } else {
        arguments.threads.clone()
    };
    let most_streams = arguments.streams.iter().copied().max().unwrap_or(1);
    let mut rows = Vec::new();
    for &threads in &threads {
        let options = LoadOptions {
            name: Some(entry.name.clone()),
            threads: Some(threads),
            exact: arguments.exact,
            engine: EngineOptions { max_concurrent: most_streams, ..EngineOptions::default() },
            ..LoadOptions::default()
        };
        let model = models::load(&entry, &options)?;
        for &prompt in &arguments.prompt {
            rows.push(measure(arguments.runs, Work::Prefill, prompt, 1, threads, || prefill(&model, prompt))?);
        }
        let tokens = arguments.generate as usize;
        for &streams in &arguments.streams {
            rows.push(measure(arguments.runs, Work::Decode, tokens, streams, threads, || {
                decode(&model, tokens, streams)
            })?);
        }
        model.engine.stop();
    }
    let first = |work| rows.iter().find(|row| row.work == work).map(|row| row.tokens_per_second);
    let report = Report {
        model: entry.name,
        machine: Machine::read(),
        exact: arguments.exact,
        prefill_tokens_per_second: first(Work::Prefill),
        decode_tokens_per_second: first(Work::Decode),
        rows,
    };
    if arguments.json { output::json(&report) } else { print(&report) }
}

fn measure(
    runs: u32,
    work: Work,
    tokens: usize,
    streams: usize,
    threads: usize,
    mut once: impl FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<Row> {
    once()?;
    let runs = (0..runs).map(|_| once()).collect::<anyhow::Result<Vec<f64>>>()?;
    Ok(Row { work, tokens, streams, threads, tokens_per_second: median(&runs), runs })
}

/// Tokens per second of one prompt.
fn prefill(model: &LoadedModel, tokens: usize) -> anyhow::Result<f64> {
    let usage = finish(model, request(model, tokens, 1, 0))?.context("the engine ended early")?;
    Ok(tokens as f64 / usage.prefill_seconds)
}

/// Tokens per second of `streams` answers at once, from the moment all have begun to the moment all have ended.
fn decode(model: &LoadedModel, tokens: usize, streams: usize) -> anyhow::Result<f64> {
    if streams == 1 {
        let usage = finish(model, request(model, DECODE_PROMPT, tokens, 0))?.context("the engine ended early")?;
        return Ok((usage.completion_tokens - 1) as f64 / usage.decode_seconds);
    }
    let begin = Instant::now();
    let mut generations = Vec::with_capacity(streams);
    for stream in 0..streams {
        generations.push(model.engine.submit(request(model, DECODE_PROMPT, tokens, stream))?);
    }
    for generation in &mut generations {
        while let Some(event) = generation.blocking_next() {
            if let GenerationEvent::Failed(error) = event {
                return Err(error.into());
            }
        }
    }
    Ok((streams * tokens) as f64 / begin.elapsed().as_secs_f64())
}

fn finish(model: &LoadedModel, request: GenerationRequest) -> anyhow::Result<Option<linnet_runtime::Usage>> {
    let mut generation = model.engine.submit(request)?;
    while let Some(event) = generation.blocking_next() {
        match event {
            GenerationEvent::Finished { usage, .. } => return Ok(Some(usage)),
            GenerationEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(None)
}

/// A prompt of pseudo-random tokens that no cache has seen, and an answer of an exact length.
fn request(model: &LoadedModel, prompt: usize, max_tokens: usize, stream: usize) -> GenerationRequest {
    // A small multiplicative generator (Lehmer, as in Park and Miller 1988) is random enough to defeat caches.
    let mut state = 48_271_u64 + stream as u64;
    let vocabulary = model.info.vocabulary_size as u64;
    let mut next = || {
        state = state * 48_271 % 0x7fff_ffff;
        u32::try_from(state % vocabulary).unwrap_or(0)
    };
    GenerationRequest {
        prompt: (0..prompt).map(|_| next()).collect(),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..GenerationRequest::default()
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let mut rows = vec![["WORK", "TOKENS", "STREAMS", "THREADS", "TOK/S", "RUNS"].map(String::from).to_vec()];
    for row in &report.rows {
        let runs: Vec<String> = row.runs.iter().map(|value| format!("{value:.0}")).collect();
        rows.push(vec![
            if row.work == Work::Prefill { "prefill".into() } else { "decode".into() },
            row.tokens.to_string(),
            row.streams.to_string(),
            row.threads.to_string(),
            format!("{:.1}", row.tokens_per_second),
            runs.join(" "),
        ]);
    }
    output::table(&rows)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
    }
=======
/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    linnet: &'static str,
    model: String,
    quantization: Option<String>,
    exact: bool,
    machine: Machine,
    /// The median of the first prefill figure.
    prefill_tokens_per_second: Option<f64>,
    /// The median of the first decode figure.
    decode_tokens_per_second: Option<f64>,
    figures: Vec<Figure>,
}

pub(crate) fn run(arguments: &LocalArguments) -> anyhow::Result<Exit> {
    let LocalArguments { prompt, streams, runs, .. } = arguments;
    ensure!(prompt.iter().chain(streams).all(|count| *count > 0), "--prompt and --streams must be at least 1");
    ensure!(*runs > 0, "--runs must be at least 1");
    ensure!(arguments.threads.iter().all(|threads| *threads > 0), "--threads must be at least 1");
    let store = Store::from_environment()?;
    let entry = models::find(&store, arguments.model.as_deref())?;
    let machine = Machine::detect();
    let default_threads = u16::try_from(machine.physical_cores).unwrap_or(u16::MAX);
    let thread_counts = if arguments.threads.is_empty() { vec![default_threads] } else { arguments.threads.clone() };
    let most_streams = streams.iter().copied().max().unwrap_or(1);

    let mut figures = Vec::new();
    for threads in thread_counts {
        let run = RunArguments { threads: Some(threads), exact: arguments.exact, kv_tokens: None };
        let engine =
            EngineOptions { max_concurrent: most_streams, queue_limit: most_streams, ..EngineOptions::default() };
        let loaded = models::load(&entry, &run, engine)?;
        let bench = Bench::new(&loaded.engine, usize::from(threads), *runs);
        bench.warm_up()?;
        for length in prompt {
            figures.push(bench.prefill(*length)?);
        }
        for count in streams.iter().filter(|_| arguments.generate > 0) {
            figures.push(bench.decode(arguments.generate, *count)?);
        }
        // Two models in memory at once would compete for it.
        loaded.engine.stop();
    }
    let first = |work: &str| figures.iter().find(|figure| figure.work == work).map(|figure| figure.tokens_per_second);
    let report = Report {
        linnet: env!("CARGO_PKG_VERSION"),
        model: entry.name,
        quantization: entry.quantization,
        exact: arguments.exact,
        machine,
        prefill_tokens_per_second: first("prefill"),
        decode_tokens_per_second: first("decode"),
        figures,
    };
    if arguments.json {
        output::json(&report)?
    } else {
        output::line(&describe(&report))?
    }
    Ok(Exit::Done)
}

fn describe(report: &Report) -> String {
    let machine = &report.machine;
    let heading = format!(
        "{} ({}), {}, {} cores, {}",
        report.model,
        report.quantization.as_deref().unwrap_or("unknown precision"),
        machine.processor.as_deref().unwrap_or(&machine.system),
        machine.physical_cores,
        machine.instruction_set,
    );
    let mut rows =
        vec![[" THREADS", " STREAMS", "WORK", " TOKENS", " TOK/S", " LOWEST", " HIGHEST"].map(str::to_owned).to_vec()];
    rows.extend(report.figures.iter().map(|figure| {
        let lowest = figure.runs.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = figure.runs.iter().copied().fold(0.0, f64::max);
        vec![
            figure.threads.to_string(),
            figure.streams.to_string(),
            figure.work.to_owned(),
            figure.tokens.to_string(),
            format!("{:.1}", figure.tokens_per_second),
            format!("{lowest:.1}"),
            format!("{highest:.1}"),
        ]
    }));
    format!("{heading}\n\n{}", output::table(&rows))
>>>>>>> a
}
