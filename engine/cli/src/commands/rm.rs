//! `linnet rm`

use crate::{models, output};
use clap::Args;
use linnet_library::Store;

/// Remove models and free their space
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Names as `linnet ls` shows them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let store = Store::from_environment()?;
    let mut removed = Vec::new();
    for name in &arguments.names {
        let one = store.remove(models::store_name(name))?;
        if !arguments.json {
            output::line(format_args!("removed {} ({} freed)", one.name, output::bytes(one.bytes_freed)))?;
        }
        removed.push(one);
    }
    if arguments.json { output::json(&removed) } else { Ok(()) }
}
