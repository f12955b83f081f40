//! The headless Linnet: chat, serve, and look after models from the command line.
<<<<<<< HEAD

mod cli;
mod commands;
mod exit_code;
mod models;
mod output;
mod progress;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = cli::Cli::parse();
    logging(arguments.verbose);
    match commands::run(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if exit_code::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linnet: {error:#}");
            exit_code::of(&error)
        }
    }
}

/// Logs go to standard error, so that answers and data stay clean on standard output.
fn logging(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("LINNET_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
=======
//!
//! [`arguments`] says what can be asked for, one file under [`commands`] does each thing, and [`exit`] turns what went
//! wrong into a text and an exit code. Results go to standard output, everything about the work to standard error.

mod arguments;
mod commands;
mod exit;
mod machine;
mod models;
mod output;
mod progress;
mod sampling;

use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit::report(commands::run(arguments.command))
>>>>>>> a
}
