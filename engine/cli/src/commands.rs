//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod listen;
pub(crate) mod pull;
pub(crate) mod remove;
pub(crate) mod serve;
pub(crate) mod transcribe;

use crate::arguments::Command;
use crate::exit::Exit;

/// Does what was asked.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Transcribe(arguments) => transcribe::run(&arguments),
        Command::Listen(arguments) => listen::run(&arguments),
        Command::Pull(arguments) => pull::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Ls(arguments) => list::run(&arguments),
        Command::Rm(arguments) => remove::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Bench(command) => bench::run(command),
    }
}
