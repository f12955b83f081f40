//! `linnet bench serve`: how servers do under the standard workload, side by side.
//!
//! [`workload`] says what is asked, [`visit`] asks it of one server that [`arm`] started, [`client`] times each answer and
//! [`record`] is what is kept. [`figures`] and [`html`] make the report of it: functions of the record and nothing else.

mod arm;
mod client;
mod figures;
mod html;
mod record;
mod visit;
mod workload;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};

use self::arm::Arm;
use self::client::Setting;
use self::figures::{Alike, Line};
use self::record::{ArmRecord, Phase, Record, SCHEMA, Workload};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::output;

/// What is measured if nothing else is asked for, in this order.
const PHASES: [Phase; 8] = [
    Phase::Decode,
    Phase::FirstToken,
    Phase::Prefix,
    Phase::Context,
    Phase::Restart,
    Phase::Aggregate,
    Phase::Waves,
    Phase::Stall,
];

/// Arguments of `linnet bench serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The first arm is ours, the others are peers. Each is a command that starts an OpenAI-compatible
server on {port}, or the address of one that runs. Arms are visited in turn, one at a time, so
that what else the machine does hits all alike.

The folder of --out gets report.html, summary.json, raw.json and the servers' logs.

Example:
  linnet bench serve --arm 'linnet=linnet serve --model starter --port {port}' \\
    --arm 'llama.cpp=llama-server -m starter.gguf -c 32768 -np 8 --port {port}' --alike counts")]
pub(crate) struct ServeBenchArguments {
    /// A server to measure; may be given more than once [default: this program with its default model]
    #[arg(long = "arm", value_name = "NAME=COMMAND|URL")]
    arms: Vec<Arm>,
    /// How often each server is visited
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// What to measure [default: all]
    #[arg(long, value_name = "PHASE,..", value_delimiter = ',', value_enum)]
    phases: Vec<Phase>,
    /// How alike answers must be for a ratio: engines that round differently can only agree in counts
    #[arg(long, value_enum, default_value_t)]
    alike: Alike,
    /// Tokens of an answer in the decode phase
    #[arg(long, value_name = "N", default_value_t = 192)]
    tokens: usize,
    /// Tokens that the long context aims at
    #[arg(long, value_name = "N", default_value_t = 4000)]
    context: usize,
    /// Seconds that a request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Where the results go
    #[arg(long, value_name = "FOLDER", default_value = "bench-serve")]
    out: PathBuf,
    /// Make the same prompts as another run; caches on disk may know them [default: the time]
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// Name this model in every request
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The key that the servers ask for
    #[arg(long, value_name = "KEY", env = "LINNET_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Measure nothing; make the report of an earlier run's raw.json again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["arms", "phases", "seed", "model"])]
    from: Option<PathBuf>,
}

pub(crate) fn run(arguments: &ServeBenchArguments) -> anyhow::Result<Exit> {
    ensure!(arguments.rounds > 0, "--rounds must be at least 1");
    ensure!(arguments.tokens > 1, "--tokens must be at least 2");
    let out = &arguments.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make the folder {}", out.display()))?;
    let record = match &arguments.from {
        Some(file) => read(file)?,
        None => measure(arguments)?,
    };
    report(&record, arguments.alike, out)
}

fn read(file: &Path) -> anyhow::Result<Record> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let record: Record =
        serde_json::from_slice(&bytes).with_context(|| format!("{} is no record of a run", file.display()))?;
    ensure!(record.schema == SCHEMA, "{} has version {}, not {SCHEMA}", file.display(), record.schema);
    Ok(record)
}

fn measure(arguments: &ServeBenchArguments) -> anyhow::Result<Record> {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    let arms = if arguments.arms.is_empty() { vec![this_program()?] } else { arguments.arms.clone() };
    let mut phases = vec![Phase::WarmUp];
    phases.extend(if arguments.phases.is_empty() { PHASES.to_vec() } else { arguments.phases.clone() });
    // What is restarted is asked for the context it had.
    ensure!(
        !phases.contains(&Phase::Restart) || phases.iter().position(|phase| *phase == Phase::Context).is_some(),
        "the phase `restart` needs `context` before it"
    );
    let workload = Workload {
        seed: arguments.seed.clone().unwrap_or_else(|| begun.to_string()),
        decode_tokens: arguments.tokens,
        context_tokens: arguments.context,
        rounds: arguments.rounds,
        phases,
    };
    let setting = Setting {
        model: arguments.model.clone(),
        key: arguments.api_key.clone().filter(|key| !key.is_empty()),
        limit: Duration::from_secs(arguments.timeout),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the thread that asks")?;
    let mut cells = Vec::new();
    for round in 0..workload.rounds {
        for turn in 0..arms.len() {
            // Each round begins with another arm.
            let number = (round + turn) % arms.len();
            let arm = &arms[number];
            eprintln!("round {} of {}: {}", round + 1, workload.rounds, arm.name);
            let log = arguments.out.join(format!("{}.log", file_name(&arm.name)));
            cells.push(runtime.block_on(visit::visit(number, arm, round, &workload, &setting, &log)));
        }
    }
    let arms = arms.iter().map(|arm| ArmRecord { name: arm.name.clone(), source: arm.source.text().to_owned() });
    Ok(Record {
        schema: SCHEMA,
        linnet: env!("CARGO_PKG_VERSION").to_owned(),
        begun,
        machine: Machine::detect(),
        workload,
        arms: arms.collect(),
        cells,
    })
}

/// The arm that is measured if none is named.
fn this_program() -> anyhow::Result<Arm> {
    let program = std::env::current_exe().context("cannot find out where this program is")?;
    let command = format!("'{}' serve --port {{port}}", program.display());
    Ok(Arm { name: "linnet".to_owned(), source: arm::Source::Command(command) })
}

fn report(record: &Record, alike: Alike, out: &Path) -> anyhow::Result<Exit> {
    let lines = figures::lines(record, alike);
    let raw = serde_json::to_string(record).context("the record cannot be written as JSON")? + "\n";
    let hash = workload::hex(&Sha256::digest(&raw));
    let summary = serde_json::to_string_pretty(&figures::summary(record, &lines))? + "\n";
    let page = html::page(record, &lines, alike, &hash);
    for (name, text) in [("raw.json", &raw), ("summary.json", &summary), ("report.html", &page)] {
        let file = out.join(name);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    output::line(&table(record, &lines))?;
    output::line(&format!("\n{}", out.join("report.html").display()))?;
    let failed = record
        .cells
        .iter()
        .any(|cell| !cell.failures.is_empty() || cell.exchanges.iter().any(|exchange| exchange.error.is_some()));
    if failed {
        eprintln!("some requests failed; the report says which");
    }
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn table(record: &Record, lines: &[Line]) -> String {
    let mut heading = vec!["WORK".to_owned(), "UNIT".to_owned()];
    heading.extend(record.arms.iter().map(|arm| format!(" {}", arm.name.to_uppercase())));
    heading.extend(record.arms.iter().skip(1).map(|_| " RATIO".to_owned()));
    let mut rows = vec![heading];
    rows.extend(lines.iter().map(|line| {
        let mut row = vec![line.metric.work.to_owned(), line.metric.unit.to_owned()];
        let figure = |figure: &Result<figures::Figure, String>| match figure {
            Ok(figure) => format!("{:.1}", figure.median),
            Err(_) => "failed".to_owned(),
        };
        row.extend(line.figures.iter().map(figure));
        row.extend(line.ratios.iter().map(|ratio| match ratio {
            Ok(ratio) => format!("{ratio:.2}"),
            Err(_) => "refused".to_owned(),
        }));
        row
    }));
    output::table(&rows)
}

/// A name as a file's.
fn file_name(name: &str) -> String {
    name.chars().map(|character| if character.is_ascii_alphanumeric() { character } else { '-' }).collect()
}
