//! Which model a command means, and how it is loaded.

use anyhow::Context;
use clap::Args;
use linnet_library::{ModelEntry, Store};
use linnet_runtime::{EngineOptions, LoadOptions, LoadedModel, load_model};

/// The starter model's name in the store.
pub(crate) const STARTER_NAME: &str = "SmolLM2-135M-Instruct";
/// What users call it.
pub(crate) const STARTER_ALIAS: &str = "starter";

/// No model is installed.
#[derive(Debug, thiserror::Error)]
#[error("no model is installed yet; `linnet pull starter` fetches a small one, `linnet import PATH` takes your own")]
pub(crate) struct NoModels;

/// How a model runs.
#[derive(Debug, Args)]
pub(crate) struct ComputeArguments {
    /// Threads to compute on [default: one per physical core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Compute exactly, in 32-bit floats, instead of with activations rounded to 8 bits; slower
    #[arg(long)]
    pub(crate) exact: bool,
    /// Tokens of context to keep for all conversations together [default: what they need, within 4 GiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) kv_tokens: Option<u32>,
}

impl ComputeArguments {
    /// These choices for an engine that shares its model as `engine` says.
    pub(crate) fn load_options(&self, name: &str, engine: EngineOptions) -> LoadOptions {
        LoadOptions {
            name: Some(name.to_owned()),
            threads: self.threads.map(usize::from),
            exact: self.exact,
            kv_tokens: self.kv_tokens.map(|tokens| tokens as usize),
            engine,
        }
    }
}

/// The model of this name; without a name the only one installed, or else the starter.
pub(crate) fn resolve(store: &Store, name: Option<&str>) -> anyhow::Result<ModelEntry> {
    if let Some(name) = name {
        return Ok(store.find(store_name(name))?);
    }
    let mut usable: Vec<ModelEntry> = store.list()?.into_iter().filter(|entry| entry.problem.is_none()).collect();
    if let Some(starter) = usable.iter().position(|entry| entry.name == STARTER_NAME) {
        return Ok(usable.swap_remove(starter));
    }
    match usable.len() {
        0 => Err(NoModels.into()),
        1 => Ok(usable.swap_remove(0)),
        _ => {
            let names: Vec<&str> = usable.iter().map(|entry| entry.name.as_str()).collect();
            anyhow::bail!("several models are installed; say which with --model: {}", names.join(", "))
        }
    }
}

/// What a model is called in the store.
pub(crate) fn store_name(name: &str) -> &str {
    if name == STARTER_ALIAS { STARTER_NAME } else { name }
}

/// Loads a model of the store.
pub(crate) fn load(entry: &ModelEntry, options: &LoadOptions) -> anyhow::Result<LoadedModel> {
    if let Some(problem) = &entry.problem {
        anyhow::bail!("{} cannot be used: {problem}", entry.name);
    }
    load_model(&entry.path, options).with_context(|| format!("{} could not be loaded", entry.name))
}
