//! `linnet bench local`: how fast a model reads prompts and writes answers here.

use clap::builder::RangedU64ValueParser;
use linnet_library::Store;
use linnet_runtime::{BackendChoice, EngineOptions};
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
second; with several streams, all answers together, from the first answer's first token to the
last answer's last. Figures are medians of the runs.

Example:
  linnet bench local starter --threads 1,2 --prompt 512,2048 --streams 1,4")]
pub(crate) struct LocalArguments {
    /// The model [default: the only one installed, else the starter]
    model: Option<String>,
    /// Lengths of prompts, in tokens
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [512], value_parser = at_least_1())]
    prompt: Vec<usize>,
    /// Length of the answers, in tokens; 0 measures prefill alone
    #[arg(long, value_name = "N", default_value_t = 128)]
    generate: usize,
    /// Numbers of answers at once
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1], value_parser = at_least_1())]
    streams: Vec<usize>,
    /// What computes: cpu or mlx [default: mlx on Apple silicon, else cpu]
    #[arg(long, value_name = "NAME")]
    backend: Option<BackendChoice>,
    /// Numbers of threads, with the cpu backend [default: one per physical core]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// How often each figure is taken
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_1())]
    runs: usize,
    /// Compute with 32-bit floats throughout instead of 15-bit activations
    #[arg(long)]
    exact: bool,
    /// Hold keys and values in 4 or 8 bits
    #[arg(long, value_name = "4|8", value_parser = models::kv_bits)]
    kv_bits: Option<u32>,
    /// Print JSON, with every single run and facts about the machine
    #[arg(long)]
    json: bool,
}

/// Counts of which 0 means nothing.
fn at_least_1() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    linnet: &'static str,
    model: String,
    quantization: Option<String>,
    backend: &'static str,
    kv_bits: Option<u32>,
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
    let store = Store::from_environment()?;
    let entry = models::find(&store, arguments.model.as_deref())?;
    let machine = Machine::detect();
    let backend = arguments.backend.unwrap_or_default();
    let thread_counts = match (backend, arguments.threads.as_slice()) {
        (BackendChoice::Cpu, []) => vec![Some(u16::try_from(machine.physical_cores).unwrap_or(u16::MAX))],
        // Not a choice there: MLX decides itself.
        (BackendChoice::Mlx, []) => vec![None],
        (_, counts) => counts.iter().copied().map(Some).collect(),
    };
    let most_streams = streams.iter().copied().max().unwrap_or(1);

    let mut figures = Vec::new();
    for threads in thread_counts {
        let run = RunArguments {
            backend: Some(backend),
            threads,
            exact: arguments.exact,
            kv_tokens: None,
            kv_memory: None,
            kv_bits: arguments.kv_bits,
        };
        let engine =
            EngineOptions { max_concurrent: most_streams, queue_limit: most_streams, ..EngineOptions::default() };
        let loaded = models::load(&entry, &run, engine)?;
        let bench = Bench::new(&loaded.engine, threads.map(usize::from), *runs);
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
        backend: backend.name(),
        kv_bits: arguments.kv_bits,
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
        "{} ({}), {} backend, {}, {} cores, {}",
        report.model,
        report.quantization.as_deref().unwrap_or("unknown precision"),
        report.backend,
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
            // Not a choice of ours, so nothing is claimed about it.
            figure.threads.map_or_else(|| "-".to_owned(), |threads| threads.to_string()),
            figure.streams.to_string(),
            figure.work.to_owned(),
            figure.tokens.to_string(),
            format!("{:.1}", figure.tokens_per_second),
            format!("{lowest:.1}"),
            format!("{highest:.1}"),
        ]
    }));
    format!("{heading}\n\n{}", output::table(&rows))
}
