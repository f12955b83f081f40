//! `linnet import`.

use std::path::PathBuf;

use linnet_library::{Affine, ImportOptions, Imported, Store, import};
use linnet_models::SUPPORTED_ARCHITECTURES;

use crate::exit::Exit;
use crate::output;
use crate::progress::Report;

/// How a model becomes one of the store's.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ConversionArguments {
    /// The model's name in Linnet [default: the source's name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Shrink weights that are not quantized yet to this many bits each
    #[arg(long, value_name = "BITS", value_parser = ["2", "3", "4", "5", "6", "8"])]
    pub(crate) quantize: Option<String>,
    /// Weights that share a scale when --quantize is given
    #[arg(long, value_name = "N", value_parser = ["32", "64", "128"], default_value = "64")]
    pub(crate) group_size: String,
    /// Store GGUF's Q4_K and Q5_K a sixth smaller, at a small loss
    #[arg(long)]
    pub(crate) compact_scales: bool,
    /// Replace a model of the same name
    #[arg(long)]
    pub(crate) force: bool,
}

impl ConversionArguments {
    /// The quantization that was asked for.
    fn affine(&self) -> Option<Affine> {
        let bits = self.quantize.as_ref()?.parse().ok()?;
        Some(Affine { bits, group_size: self.group_size.parse().ok()? })
    }

    /// The import that was asked for.
    pub(crate) fn options(&self) -> ImportOptions<'static> {
        ImportOptions {
            name: self.name.clone(),
            quantize: self.affine(),
            compact_scales: self.compact_scales,
            supported: SUPPORTED_ARCHITECTURES,
            replace: self.force,
            ..ImportOptions::default()
        }
    }
}

/// Arguments of `linnet import`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  linnet import ~/Downloads/model-Q4_K_M.gguf
  linnet import ./Llama-3.2-1B-Instruct --quantize 4 --name llama-1b
`linnet inspect PATH` shows what an import would do.")]
pub(crate) struct ImportArguments {
    /// A GGUF file, a folder in MLX's or Hugging Face's layout, or Whisper of faster-whisper, whisper.cpp or mlx-whisper
    path: PathBuf,
    #[command(flatten)]
    conversion: ConversionArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &ImportArguments) -> anyhow::Result<Exit> {
    let store = Store::from_environment()?;
    let options = arguments.conversion.options();
    let report = Report::new();
    let imported = import(&store, &arguments.path, &options, &mut |progress| report.import(&progress))?;
    drop(report);
    tell(&imported, arguments.json)
}

/// Says what was imported.
pub(crate) fn tell(imported: &Imported, json: bool) -> anyhow::Result<Exit> {
    if json {
        output::json(imported)?;
        return Ok(Exit::Done);
    }
    for note in &imported.notes {
        eprintln!("note: {note}");
    }
    let entry = &imported.entry;
    let precision = entry.quantization.as_deref().unwrap_or("unknown precision");
    output::line(&format!("{} is ready ({precision}, {})", entry.name, output::bytes(entry.size_on_disk)))?;
    Ok(Exit::Done)
}
