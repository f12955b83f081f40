//! The command line: one variant per command; what a command takes stands in its own file.

use crate::commands;
use clap::{Parser, Subcommand};

/// A private language model on your own machine: chat with it, or serve it to other programs.
///
/// Models are kept in LINNET_HOME (default: your data folder, ~/.local/share/linnet on Linux).
#[derive(Debug, Parser)]
#[command(
    name = "linnet",
    version,
    propagate_version = true,
    after_help = "Getting started:\n  \
        linnet pull starter                       fetch a small model (about 100 MB)\n  \
        linnet chat \"What is the capital of France?\"\n  \
        linnet serve                              an OpenAI-compatible endpoint on 127.0.0.1:5466\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such model, 130 interrupted."
)]
pub(crate) struct Cli {
    /// Say more on standard error; twice for everything. LINNET_LOG holds a finer filter.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(commands::serve::Arguments),
    Chat(commands::chat::Arguments),
    Pull(commands::pull::Arguments),
    Import(commands::import::Arguments),
    Ls(commands::ls::Arguments),
    Rm(commands::rm::Arguments),
    Inspect(commands::inspect::Arguments),
    Bench(commands::bench::Arguments),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} has no help text", command.get_name());
        }
    }
}
