<<<<<<< HEAD
//! `linnet bench`

mod local;
mod machine;

use clap::{Args, Subcommand};

/// Measure speed on this machine
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Local(local::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.what {
        What::Local(arguments) => local::run(arguments),
=======
//! `linnet bench`.

mod local;
mod measure;

pub(crate) use local::LocalArguments;

use crate::exit::Exit;

/// What can be measured.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure prefill and decode of a model on this machine
    Local(LocalArguments),
}

pub(crate) fn run(command: BenchCommand) -> anyhow::Result<Exit> {
    match command {
        BenchCommand::Local(arguments) => local::run(&arguments),
>>>>>>> a
    }
}
