//! `linnet inspect`.

use linnet_library::{ImportOptions, Inspection, Store, Verdict, inspect};
use linnet_models::SUPPORTED_ARCHITECTURES;

use crate::exit::Exit;
use crate::output;

/// Arguments of `linnet inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArguments {
    /// A model's name, or the path of a model's file or folder
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &InspectArguments) -> anyhow::Result<Exit> {
    let store = Store::from_environment()?;
    let options = ImportOptions { supported: SUPPORTED_ARCHITECTURES, ..ImportOptions::default() };
    let inspection = inspect(&store, &arguments.model, &options)?;
    if arguments.json {
        output::json(&inspection)?;
    } else {
        output::line(&describe(&inspection))?;
    }
    Ok(Exit::Done)
}

fn describe(inspection: &Inspection) -> String {
    let unknown = || "unknown".to_owned();
    let kinds = inspection.types.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ");
    let size = match inspection.imported_bytes {
        Some(imported) if imported != inspection.weight_bytes => {
            format!("{} ({} once imported)", output::bytes(inspection.weight_bytes), output::bytes(imported))
        }
        _ => output::bytes(inspection.weight_bytes),
    };
    let mut rows = vec![
        ("path", inspection.path.display().to_string()),
        ("format", inspection.format.clone()),
        ("architecture", inspection.architecture.clone().unwrap_or_else(unknown)),
        ("weights", output::parameters(inspection.parameters)),
        ("tensors", format!("{} ({kinds})", inspection.tensors)),
        ("size", size),
        ("context", inspection.context_length.map_or_else(unknown, |length| format!("{length} tokens"))),
        ("tokenizer", inspection.tokenizer.clone().unwrap_or_else(unknown)),
        ("chat template", if inspection.has_chat_template { "yes" } else { "no" }.to_owned()),
    ];
    match &inspection.verdict {
        Verdict::Ready => rows.push(("verdict", "Linnet runs this".to_owned())),
        Verdict::Refused { reason } => rows.push(("verdict", format!("cannot be used: {reason}"))),
    }
    rows.extend(inspection.plan.iter().map(|line| ("on import", line.clone())));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    output::table(&rows)
}
