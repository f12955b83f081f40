//! `linnet inspect`

use crate::{models, output};
use clap::Args;
use linnet_library::{ImportOptions, Store, Verdict, inspect};
use linnet_models::SUPPORTED_ARCHITECTURES;

/// Show what a model is, and what an import of it would do, without importing it
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// An installed model, or the path of an MLX folder, a Hugging Face folder or a GGUF file
    #[arg(value_name = "NAME or PATH")]
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let store = Store::from_environment()?;
    let options = ImportOptions { supported: SUPPORTED_ARCHITECTURES, ..ImportOptions::default() };
    let found = inspect(&store, models::store_name(&arguments.model), &options)?;
    if arguments.json {
        return output::json(&found);
    }
    let types: Vec<String> = found.types.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let unknown = || "unknown".to_owned();
    let mut rows = vec![
        ["path".into(), found.path.display().to_string()],
        ["format".into(), found.format],
        ["architecture".into(), found.architecture.unwrap_or_else(unknown)],
        ["weights".into(), format!("{} in {}", output::count(found.parameters), output::bytes(found.weight_bytes))],
        ["tensors".into(), format!("{} ({})", found.tensors, types.join(", "))],
        ["context".into(), found.context_length.map_or_else(unknown, |tokens| format!("{tokens} tokens"))],
        ["tokenizer".into(), found.tokenizer.unwrap_or_else(unknown)],
        ["chat template".into(), if found.has_chat_template { "yes".into() } else { "none".to_owned() }],
    ];
    if let Some(size) = found.imported_bytes {
        rows.push(["imported".into(), output::bytes(size)]);
    }
    output::table(&rows.map_rows())?;
    for step in &found.plan {
        output::line(format_args!("- {step}"))?;
    }
    match found.verdict {
        Verdict::Ready => output::line("ready")?,
        Verdict::Refused { reason } => output::line(format_args!("cannot be used: {reason}"))?,
    }
    Ok(())
}

/// Rows of fixed width as rows of any width.
trait MapRows {
    fn map_rows(self) -> Vec<Vec<String>>;
}

impl<const N: usize> MapRows for Vec<[String; N]> {
    fn map_rows(self) -> Vec<Vec<String>> {
        self.into_iter().map(Vec::from).collect()
    }
}
