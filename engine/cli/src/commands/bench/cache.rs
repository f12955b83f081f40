//! `linnet bench cache`: what it costs to keep a growing conversation on disk, beside writing it as a whole each time.

mod blocks;
mod state;
mod whole;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use linnet_library::Store;
use serde::Serialize;

use super::measure::median;
use crate::exit::Exit;
use crate::machine::Machine;
use crate::output;
use state::State;

/// Arguments of `linnet bench cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A state of keys and values grows to its full size in four checkpoints, and each is made durable
before the next. \"whole\" writes each checkpoint as a file of its own; \"blocks\" is what Linnet
does, which stores what checkpoints share once. Both write the same state to the same disk, in
turns; figures are medians. No model is needed.

Example:
  linnet bench cache --mib 256 --runs 5")]
pub(crate) struct CacheArguments {
    /// Size of the last checkpoint, in MiB
    #[arg(long, value_name = "N", default_value_t = 256)]
    mib: usize,
    /// How often each figure is taken
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Tokens of a block
    #[arg(long, value_name = "N", default_value_t = 64)]
    block_tokens: usize,
    /// Where to write; it must be on the disk that is to be measured [default: a folder in LINNET_HOME]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON, with every single run and facts about the machine
    #[arg(long)]
    json: bool,
}

/// How many checkpoints there are, each larger than the one before by the same amount.
const CHECKPOINTS: usize = 4;
/// Removing large files keeps a disk busy after the call has returned; the next run must not pay for it.
const SETTLE: Duration = Duration::from_millis(300);

/// One run of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Sample {
    /// All checkpoints, each durable.
    write_ms: f64,
    /// Each checkpoint.
    checkpoints_ms: [f64; CHECKPOINTS],
    /// The last checkpoint, read back into memory while its pages are warm.
    read_ms: f64,
    /// Opening what is there, before the first read.
    open_ms: f64,
    /// Bytes of the files in the end.
    bytes: u64,
}

/// One arm's medians and the runs behind them.
#[derive(Debug, Serialize)]
struct Arm {
    name: &'static str,
    write_ms: f64,
    read_ms: f64,
    open_ms: f64,
    bytes: u64,
    runs: Vec<Sample>,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Report {
    linnet: &'static str,
    machine: Machine,
    state_mib: usize,
    block_tokens: usize,
    whole: Arm,
    blocks: Arm,
    /// Blocks against whole files.
    write_ratio: f64,
    read_ratio: f64,
    /// By how much there are fewer bytes, in percent.
    bytes_saved_percent: f64,
}

pub(crate) fn run(arguments: &CacheArguments) -> anyhow::Result<Exit> {
    let CacheArguments { mib, runs, block_tokens, .. } = *arguments;
    ensure!(mib > 0 && runs > 0 && block_tokens > 0, "--mib, --runs and --block-tokens must be at least 1");
    let parent = match &arguments.directory {
        Some(directory) => directory.clone(),
        None => Store::from_environment()?.home().to_owned(),
    };
    let directory = parent.join(format!(".bench-cache-{}", std::process::id()));
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot write to {}", directory.display()))?;
    let measured = measure(&directory, mib, runs, block_tokens);
    let removed = std::fs::remove_dir_all(&directory);
    let report = measured?;
    removed.with_context(|| format!("cannot remove {}", directory.display()))?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::line(&describe(&report))?;
    }
    Ok(Exit::Done)
}

fn measure(directory: &Path, mib: usize, runs: usize, block_tokens: usize) -> anyhow::Result<Report> {
    let state = State::new(mib);
    let (mut whole, mut blocks) = (Vec::new(), Vec::new());
    // The first of each is not counted: allocator and file system are warm after it.
    for run in 0..=runs {
        // In turns, so that neither always comes after the other.
        for is_whole in [run % 2 == 0, run % 2 == 1] {
            let folder = directory.join(if is_whole { "whole" } else { "blocks" });
            std::fs::create_dir(&folder)?;
            let sample =
                if is_whole { whole::sample(&state, &folder)? } else { blocks::sample(&state, &folder, block_tokens)? };
            std::fs::remove_dir_all(&folder)?;
            File::open(directory)?.sync_all()?;
            std::thread::sleep(SETTLE);
            if run > 0 {
                if is_whole { whole.push(sample) } else { blocks.push(sample) }
            }
        }
    }
    let (whole, blocks) = (arm("whole", whole), arm("blocks", blocks));
    Ok(Report {
        linnet: env!("CARGO_PKG_VERSION"),
        machine: Machine::detect(),
        state_mib: mib,
        block_tokens,
        write_ratio: blocks.write_ms / whole.write_ms,
        read_ratio: blocks.read_ms / whole.read_ms,
        bytes_saved_percent: 100.0 * (1.0 - blocks.bytes as f64 / whole.bytes as f64),
        whole,
        blocks,
    })
}

fn arm(name: &'static str, runs: Vec<Sample>) -> Arm {
    let middle = |figure: fn(&Sample) -> f64| median(&runs.iter().map(figure).collect::<Vec<_>>());
    Arm {
        name,
        write_ms: middle(|run| run.write_ms),
        read_ms: middle(|run| run.read_ms),
        open_ms: middle(|run| run.open_ms),
        bytes: runs.iter().map(|run| run.bytes).max().unwrap_or(0),
        runs,
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn describe(report: &Report) -> String {
    let machine = &report.machine;
    let heading = format!(
        "{CHECKPOINTS} checkpoints growing to {} MiB, each durable; blocks of {} tokens; {}, {} cores",
        report.state_mib,
        report.block_tokens,
        machine.processor.as_deref().unwrap_or(&machine.system),
        machine.physical_cores,
    );
    let mut rows = vec![["", " WRITE ms", " LOWEST", " HIGHEST", " READ ms", " ON DISK"].map(str::to_owned).to_vec()];
    rows.extend([&report.whole, &report.blocks].map(|arm| {
        let writes = || arm.runs.iter().map(|run| run.write_ms);
        vec![
            arm.name.to_owned(),
            format!("{:.1}", arm.write_ms),
            format!("{:.1}", writes().fold(f64::INFINITY, f64::min)),
            format!("{:.1}", writes().fold(0.0, f64::max)),
            format!("{:.1}", arm.read_ms),
            output::bytes(arm.bytes),
        ]
    }));
    format!(
        "{heading}\n\n{}\n\nblocks take {:.2}x the time of whole files to write, {:.2}x to read, and {:.1}% fewer bytes",
        output::table(&rows),
        report.write_ratio,
        report.read_ratio,
        report.bytes_saved_percent,
    )
}
