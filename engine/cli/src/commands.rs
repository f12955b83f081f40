//! One file per command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod pull;
pub(crate) mod rm;
pub(crate) mod serve;

use crate::cli::Command;

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Pull(arguments) => pull::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Ls(arguments) => ls::run(&arguments),
        Command::Rm(arguments) => rm::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}
