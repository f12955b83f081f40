//! `linnet rm`.

use linnet_library::Store;

use crate::exit::Exit;
use crate::output;

/// Arguments of `linnet rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArguments {
    /// The models to remove, by name
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    /// Print a JSON list of what was removed
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &RemoveArguments) -> anyhow::Result<Exit> {
    let store = Store::from_environment()?;
    let mut removed = Vec::new();
    for model in &arguments.models {
        let one = store.remove(model)?;
        if !arguments.json {
            output::line(&format!("removed {} ({} freed)", one.name, output::bytes(one.bytes_freed)))?;
        }
        removed.push(one);
    }
    if arguments.json {
        output::json(&removed)?;
    }
    Ok(Exit::Done)
}
