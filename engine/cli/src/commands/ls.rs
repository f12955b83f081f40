//! `linnet ls`

use crate::output;
use clap::Args;
use linnet_library::Store;

/// List the installed models
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let entries = Store::from_environment()?.list()?;
    if arguments.json {
        return output::json(&entries);
    }
    if entries.is_empty() {
        eprintln!("No model is installed. `linnet pull starter` fetches a small one.");
        return Ok(());
    }
    let mut rows =
        vec![["NAME", "ARCHITECTURE", "WEIGHTS", "QUANTIZATION", "CONTEXT", "SIZE"].map(String::from).to_vec()];
    for entry in entries {
        let size = output::bytes(entry.size_on_disk);
        if let Some(problem) = entry.problem {
            rows.push(vec![entry.name, format!("unusable: {problem}")]);
            continue;
        }
        let unknown = || "?".to_owned();
        rows.push(vec![
            entry.name,
            entry.architecture.unwrap_or_else(unknown),
            entry.parameters.map_or_else(unknown, output::count),
            entry.quantization.unwrap_or_else(unknown),
            entry.context_length.map_or_else(unknown, |tokens| tokens.to_string()),
            size,
        ]);
    }
    output::table(&rows)?;
    Ok(())
}
