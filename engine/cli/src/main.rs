//! The headless Linnet: chat, serve, and look after models from the command line.
//!
//! [`arguments`] says what can be asked for, one file under [`commands`] does each thing, and [`exit`] turns what went
//! wrong into a text and an exit code. Results go to standard output, everything about the work to standard error.

mod arguments;
mod commands;
mod exit;
mod machine;
mod models;
mod output;
mod prefix_cache;
mod progress;
mod sampling;
mod speech;
mod units;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit::report(commands::run(arguments.command))
}
