//! `linnet import`

use crate::{output, progress};
use clap::Args;
use linnet_library::{Affine, ImportOptions, Imported, Stage, Store, import};
use linnet_models::SUPPORTED_ARCHITECTURES;
use std::path::{Path, PathBuf};

/// Import a model: an MLX folder, a Hugging Face folder or a GGUF file
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The folder or file
    path: PathBuf,
    /// The name to give it [default: from the source's name]
    #[arg(long)]
    name: Option<String>,
    /// Quantize dense weights to this many bits; without it they are kept as they are
    #[arg(long, value_name = "BITS", value_parser = ["2", "3", "4", "5", "6", "8"])]
    quantize: Option<String>,
    /// Weights that share a scale
    #[arg(long, value_name = "N", default_value = "64", value_parser = ["32", "64", "128"], requires = "quantize")]
    group_size: String,
    /// Round the scales of Q4_K and Q5_K files to 16 bits: a sixth smaller, no longer exact
    #[arg(long)]
    compact_scales: bool,
    /// Take the place of a model of the same name
    #[arg(long)]
    replace: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let store = Store::from_environment()?;
    let quantize = match &arguments.quantize {
        Some(bits) => Some(Affine { bits: bits.parse()?, group_size: arguments.group_size.parse()? }),
        None => None,
    };
    let options = ImportOptions {
        name: arguments.name.clone(),
        quantize,
        compact_scales: arguments.compact_scales,
        supported: SUPPORTED_ARCHITECTURES,
        replace: arguments.replace,
    };
    let imported = with_bar(&store, &arguments.path, &options)?;
    if arguments.json { output::json(&imported) } else { report(&imported) }
}

/// Imports with a progress bar.
pub(crate) fn with_bar(store: &Store, source: &Path, options: &ImportOptions<'_>) -> anyhow::Result<Imported> {
    let bar = progress::byte_bar("checking");
    let imported = import(store, source, options, &mut |step| {
        bar.set_length(step.total);
        bar.set_position(step.done);
        bar.set_message(match step.stage {
            Stage::Checking => "checking".to_owned(),
            Stage::Converting => step.item.clone(),
            Stage::Finishing => "finishing".to_owned(),
        });
    });
    bar.finish_and_clear();
    Ok(imported?)
}

/// Says what was imported and what was lost.
pub(crate) fn report(imported: &Imported) -> anyhow::Result<()> {
    let entry = &imported.entry;
    let kind = entry.quantization.as_deref().unwrap_or("weights");
    output::line(format_args!("imported {} ({kind}, {})", entry.name, output::bytes(entry.size_on_disk)))?;
    for note in &imported.notes {
        output::line(format_args!("- {note}"))?;
    }
    Ok(())
}
