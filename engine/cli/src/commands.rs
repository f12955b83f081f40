<<<<<<< HEAD
//! One file per command.
=======
//! The commands, one file each.
>>>>>>> a

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod import;
pub(crate) mod inspect;
<<<<<<< HEAD
pub(crate) mod ls;
pub(crate) mod pull;
pub(crate) mod rm;
pub(crate) mod serve;

use crate::cli::Command;

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
=======
pub(crate) mod list;
pub(crate) mod pull;
pub(crate) mod remove;
pub(crate) mod serve;

use crate::arguments::Command;
use crate::exit::Exit;

/// Does what was asked.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
>>>>>>> a
    match command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Chat(arguments) => chat::run(&arguments),
        Command::Pull(arguments) => pull::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
<<<<<<< HEAD
        Command::Ls(arguments) => ls::run(&arguments),
        Command::Rm(arguments) => rm::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
=======
        Command::Ls(arguments) => list::run(&arguments),
        Command::Rm(arguments) => remove::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Bench(command) => bench::run(command),
>>>>>>> a
    }
}
