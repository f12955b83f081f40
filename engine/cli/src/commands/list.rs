//! `linnet ls`.

use linnet_library::{ModelEntry, ModelKind, Store};

use crate::exit::Exit;
use crate::output;

/// Arguments of `linnet ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArguments {
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &ListArguments) -> anyhow::Result<Exit> {
    let entries = Store::from_environment()?.list()?;
    if arguments.json {
        output::json(&entries)?;
    } else if entries.is_empty() {
        eprintln!("no model is installed yet; fetch a small one with `linnet pull starter`");
    } else {
        output::line(&output::table(&rows(&entries)))?;
    }
    Ok(Exit::Done)
}

fn rows(entries: &[ModelEntry]) -> Vec<Vec<String>> {
    let heading = ["NAME", "KIND", "ARCHITECTURE", " WEIGHTS", "PRECISION", " CONTEXT", " SIZE", "PROBLEM"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(entries.iter().map(|entry| {
        vec![
            entry.name.clone(),
            match entry.kind {
                ModelKind::Text => "text".to_owned(),
                ModelKind::Speech => "speech".to_owned(),
            },
            entry.architecture.clone().unwrap_or_else(|| "?".to_owned()),
            entry.parameters.map_or_else(|| "?".to_owned(), output::parameters),
            entry.quantization.clone().unwrap_or_else(|| "?".to_owned()),
            entry.context_length.map_or_else(|| "?".to_owned(), |length| length.to_string()),
            output::bytes(entry.size_on_disk),
            entry.problem.clone().unwrap_or_default(),
        ]
    }));
    // Most lists have no problems; then neither needs the column.
    if entries.iter().all(|entry| entry.problem.is_none()) {
        rows.iter_mut().for_each(|row| row.truncate(7));
    }
    rows
}
