//! Which model is meant, and loading it.

use anyhow::Context;
use linnet_library::{LibraryError, ModelEntry, ModelKind, STARTER, STARTER_NAME, Store};
use linnet_runtime::{BackendChoice, EngineOptions, KvQuantization, LoadOptions, LoadedModel, load_model};

use crate::units;

/// No model could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChoiceError {
    /// There is none.
    #[error("no model is installed yet; fetch a small one with `linnet pull starter`")]
    None,
    /// There are several and none of them is the default.
    #[error("several models are installed and none was named; name one of: {}", .0.join(", "))]
    Several(Vec<String>),
    /// The starter was asked for and is not there.
    #[error("the starter model is not installed; fetch it with `linnet pull starter`")]
    NoStarter,
    /// A speech model where a text model is meant.
    #[error("\"{0}\" is a speech model; use `linnet transcribe` or `linnet listen` with it, or name a text model")]
    Speech(String),
    /// A text model where a speech model is meant.
    #[error("\"{0}\" is a text model; name a speech model, or fetch one with `linnet pull whisper-tiny.en`")]
    Text(String),
    /// There is no speech model.
    #[error(
        "no speech model is installed yet; fetch one with `linnet pull whisper-tiny.en`, or `whisper-base` for more \
             languages"
    )]
    NoSpeech,
    /// There are several speech models and none was named.
    #[error("several speech models are installed and none was named; name one of: {}", .0.join(", "))]
    SeveralSpeech(Vec<String>),
    /// The model is there but cannot be used.
    #[error("\"{name}\" cannot be used: {problem}")]
    Unusable {
        /// The model.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The model of that name, `starter` included; without a name the default model.
pub(crate) fn find(store: &Store, name: Option<&str>) -> anyhow::Result<ModelEntry> {
    let entry = match name {
        Some(STARTER) => match store.find(STARTER) {
            Err(LibraryError::NotFound { .. }) => return Err(ChoiceError::NoStarter.into()),
            found => found?,
        },
        Some(name) => store.find(name)?,
        None => choose(store.list()?)?,
    };
    if is_speech(&entry) {
        return Err(ChoiceError::Speech(entry.name).into());
    }
    match entry.problem {
        Some(problem) => Err(ChoiceError::Unusable { name: entry.name, problem }.into()),
        None => Ok(entry),
    }
}

/// The model of that name, whatever it does.
pub(crate) fn find_any(store: &Store, name: &str) -> anyhow::Result<ModelEntry> {
    match find(store, Some(name)) {
        Err(error) if matches!(error.downcast_ref(), Some(ChoiceError::Speech(_))) => {
            crate::speech::find(store, Some(name))
        }
        other => other,
    }
}

/// Whether a model makes text of speech.
pub(crate) fn is_speech(entry: &ModelEntry) -> bool {
    entry.kind == ModelKind::Speech
}

/// The default model: the only usable one, else the starter. Speech models are not meant.
pub(crate) fn choose(entries: Vec<ModelEntry>) -> Result<ModelEntry, ChoiceError> {
    let is_meant = |entry: &ModelEntry| entry.problem.is_none() && !is_speech(entry);
    let mut usable: Vec<ModelEntry> = entries.into_iter().filter(is_meant).collect();
    let index = match usable.as_slice() {
        [] => return Err(ChoiceError::None),
        [_] => Some(0),
        several => several.iter().position(|entry| entry.name == STARTER_NAME),
    };
    match index {
        Some(index) => Ok(usable.swap_remove(index)),
        None => Err(ChoiceError::Several(usable.into_iter().map(|entry| entry.name).collect())),
    }
}

/// How the model runs, where a command lets the user say.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Running the model")]
pub(crate) struct RunArguments {
    /// What computes: cpu or mlx [default: mlx on Apple silicon, else cpu]
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<BackendChoice>,
    /// Threads to compute on, with the cpu backend [default: one per physical core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Compute with 32-bit floats throughout instead of 15-bit activations; slower; cpu backend only
    #[arg(long)]
    pub(crate) exact: bool,
    /// Tokens that all conversations together may hold in memory [default: what the context needs]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) kv_tokens: Option<u32>,
    /// Memory that all conversations together may take, such as 2GB [default: 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, conflicts_with = "kv_tokens")]
    pub(crate) kv_memory: Option<u64>,
    /// Hold conversations in 4 or 8 bits per value: less memory, a little less exact
    #[arg(long, value_name = "4|8", value_parser = kv_bits)]
    pub(crate) kv_bits: Option<u32>,
}

/// Values that share a scale where conversations are held in fewer bits; fewer where a head cannot be cut into as many.
const KV_GROUP: usize = 64;

/// How many bits the user asks conversations to be held in.
pub(crate) fn kv_bits(text: &str) -> Result<u32, &'static str> {
    match text {
        "4" => Ok(4),
        "8" => Ok(8),
        _ => Err("must be 4 or 8"),
    }
}

/// How a model of the store is loaded.
pub(crate) fn load_options(entry: &ModelEntry, run: &RunArguments, engine: EngineOptions) -> LoadOptions {
    LoadOptions {
        name: Some(entry.name.clone()),
        backend: run.backend.unwrap_or_default(),
        kv_quantization: run.kv_bits.map(|bits| KvQuantization { bits, group_size: KV_GROUP, start: 0 }),
        threads: run.threads.map(usize::from),
        exact: run.exact,
        kv_tokens: run.kv_tokens.and_then(|tokens| usize::try_from(tokens).ok()),
        kv_bytes: run.kv_memory.and_then(|bytes| usize::try_from(bytes).ok()),
        engine,
        ..LoadOptions::default()
    }
}

/// Loads a model of the store.
pub(crate) fn load(entry: &ModelEntry, run: &RunArguments, engine: EngineOptions) -> anyhow::Result<LoadedModel> {
    let options = load_options(entry, run, engine);
    load_model(&entry.path, &options).with_context(|| format!("cannot load \"{}\"", entry.name))
}

/// A model of which only name and kind are known.
#[cfg(test)]
pub(crate) fn test_entry(name: &str, kind: ModelKind) -> ModelEntry {
    ModelEntry {
        name: name.into(),
        path: std::path::PathBuf::new(),
        kind,
        architecture: None,
        parameters: None,
        size_on_disk: 0,
        quantization: None,
        context_length: None,
        source: None,
        created: None,
        notes: Vec::new(),
        problem: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, problem: Option<&str>) -> ModelEntry {
        ModelEntry { problem: problem.map(str::to_owned), ..test_entry(name, ModelKind::Text) }
    }

    #[test]
    fn the_default_is_the_only_usable_model_or_the_starter() {
        let chosen = |entries: Vec<ModelEntry>| choose(entries).map(|entry| entry.name);
        assert_eq!(chosen(vec![]), Err(ChoiceError::None));
        assert_eq!(chosen(vec![entry("a", None), entry("b", Some("broken"))]), Ok("a".into()));
        assert_eq!(chosen(vec![entry("a", Some("broken"))]), Err(ChoiceError::None));
        assert_eq!(chosen(vec![entry("a", None), entry(STARTER_NAME, None)]), Ok(STARTER_NAME.into()));
        let hears = ModelEntry { kind: ModelKind::Speech, ..entry("w", None) };
        assert_eq!(chosen(vec![entry("a", None), hears.clone()]), Ok("a".into()), "speech models do not chat");
        assert_eq!(chosen(vec![hears]), Err(ChoiceError::None));
        let several = Err(ChoiceError::Several(vec!["a".into(), "b".into()]));
        assert_eq!(chosen(vec![entry("a", None), entry("b", None)]), several);
    }

    #[test]
    fn the_starter_that_is_not_there_says_how_to_get_it() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let error = find(&store, Some("starter")).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&ChoiceError::NoStarter));
        assert_eq!(find(&store, None).unwrap_err().downcast_ref(), Some(&ChoiceError::None));
    }
}
