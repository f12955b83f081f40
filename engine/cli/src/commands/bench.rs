//! `linnet bench`.

mod cache;
mod local;
mod measure;
mod serve;

pub(crate) use cache::CacheArguments;
pub(crate) use local::LocalArguments;
pub(crate) use serve::ServeBenchArguments;

use crate::exit::Exit;

/// What can be measured.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure prefill and decode of a model on this machine
    Local(LocalArguments),
    /// Measure what keeping computed prompts on this disk costs
    Cache(CacheArguments),
    /// Measure servers side by side: first tokens, answers at once, stalls, restarts
    Serve(ServeBenchArguments),
}

pub(crate) fn run(command: BenchCommand) -> anyhow::Result<Exit> {
    match command {
        BenchCommand::Local(arguments) => local::run(&arguments),
        BenchCommand::Cache(arguments) => cache::run(&arguments),
        BenchCommand::Serve(arguments) => serve::run(&arguments),
    }
}
