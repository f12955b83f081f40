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
    }
}
