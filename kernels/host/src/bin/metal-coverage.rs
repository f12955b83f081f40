//! Prints which share of the Metal kernels' lines the tests ran, and fails below the floor.
//!
//! usage: `metal-coverage clear|report`

#![allow(clippy::print_stdout, reason = "a command-line tool")]

use std::{env, process::ExitCode};

use linnet_kernels::metal::KERNELS;
use linnet_metal_host::{HostError, Toolchain, coverage};

/// The least share of lines, in percent.
const FLOOR: f64 = 95.0;

fn main() -> ExitCode {
    let result = match env::args().nth(1).as_deref() {
        Some("clear") => Toolchain::find().and_then(|toolchain| coverage::clear(&toolchain)).map(|()| true),
        Some("report") => report(),
        _ => {
            println!("usage: metal-coverage clear|report");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn report() -> Result<bool, HostError> {
    let files = coverage::read(&Toolchain::find()?)?;
    let mut names: Vec<&str> =
        KERNELS.iter().flat_map(|kernel| kernel.functions.iter().chain([&kernel.body])).map(|file| file.name).collect();
    names.sort_unstable();
    names.dedup();
    let (mut covered, mut total, mut is_complete) = (0, 0, true);
    for name in names {
        let Some(file) = files.get(name) else {
            println!("{name:<32} never ran");
            is_complete = false;
            continue;
        };
        let missed: Vec<String> = file.missed().iter().map(ToString::to_string).collect();
        let note = if missed.is_empty() { String::new() } else { format!("  not run: {}", missed.join(" ")) };
        println!("{name:<32} {:>4} of {:>4} lines{note}", file.covered(), file.runs.len());
        covered += file.covered();
        total += file.runs.len();
    }
    let share = 100.0 * covered as f64 / total.max(1) as f64;
    println!("line coverage of the Metal kernels: {share:.1}% (at least {FLOOR}%)");
    Ok(is_complete && share >= FLOOR)
}
