//! Which speech model is meant, and loading it.

use std::path::Path;

use anyhow::anyhow;
use linnet_library::{ModelEntry, Store};
use linnet_models::WeightPrecision;
use linnet_runtime::BackendChoice;
use linnet_speech::{
    Language, NetworkOptions, Recognizer, SpeechEngine, SpeechEngineOptions, SpeechError, Task, TranscribeOptions,
    Transcriber, load_network,
};

use crate::models::{ChoiceError, is_speech};

/// Speech models in the order in which one is taken for the default: the best that a machine of any size can run.
const PREFERRED: [&str; 2] = ["large-v3-turbo", "base"];

/// How speech is recognised, where a command lets the user say.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SpeechArguments {
    /// The speech model [default: the only one installed, else the best of the known ones]
    #[arg(long, short)]
    pub(crate) model: Option<String>,
    /// The language, such as `de` or `german`; several with commas: one of these [default: found out]
    #[arg(long, short, value_name = "LANGUAGE", value_delimiter = ',', value_parser = language)]
    pub(crate) language: Vec<Language>,
    /// Write English whatever is spoken
    #[arg(long)]
    pub(crate) translate: bool,
    /// Hypotheses that are followed side by side; more is slower and a little better
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) beam: u8,
    /// Text that comes before, as a hint at names and style
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Names and terms that are likely, with commas between them
    #[arg(long, value_name = "TERMS", value_delimiter = ',')]
    pub(crate) vocabulary: Vec<String>,
    /// What computes: cpu or mlx [default: mlx on Apple silicon, else cpu]
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<BackendChoice>,
    /// Threads to compute on, with the cpu backend [default: one per physical core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Weights in 8 bits, which is faster, or as they are stored [default: int8 with the cpu backend, else stored]
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) weights: Option<Weights>,
}

/// How a speech model's weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Weights {
    /// Rounded to 8 bits at load.
    Int8,
    /// As they are stored.
    Stored,
}

impl SpeechArguments {
    /// How to transcribe.
    pub(crate) fn options(&self) -> TranscribeOptions {
        TranscribeOptions {
            task: if self.translate { Task::Translate } else { Task::Transcribe },
            languages: self.language.iter().map(|language| language.code.to_owned()).collect(),
            beam_size: usize::from(self.beam),
            initial_prompt: self.prompt.clone(),
            vocabulary: self.vocabulary.clone(),
            ..TranscribeOptions::default()
        }
    }

    /// The model that is meant.
    pub(crate) fn entry(&self, store: &Store) -> anyhow::Result<ModelEntry> {
        find(store, self.model.as_deref())
    }

    /// The thread that recognises with a model.
    pub(crate) fn engine(&self, entry: &ModelEntry) -> anyhow::Result<SpeechEngine> {
        let (path, options) = (entry.path.clone(), network_options(self.backend, self.threads, self.weights));
        SpeechEngine::start(&entry.name, SpeechEngineOptions::default(), move || load(&path, &options))
            .map_err(|error| anyhow!("{error}"))
    }
}

/// How a network is run. On processors 8 bits are twice as fast and transcribe as well (`make bench-speech`).
pub(crate) fn network_options(
    backend: Option<BackendChoice>,
    threads: Option<u16>,
    weights: Option<Weights>,
) -> NetworkOptions {
    let backend = backend.unwrap_or_default();
    let usual = if backend == BackendChoice::Cpu { Weights::Int8 } else { Weights::Stored };
    NetworkOptions {
        backend,
        threads: threads.map(usize::from),
        weights: match weights.unwrap_or(usual) {
            Weights::Int8 => WeightPrecision::Int8,
            Weights::Stored => WeightPrecision::Stored,
        },
        ..NetworkOptions::default()
    }
}

/// Loads the speech model in a folder, on the thread that will own it.
pub(crate) fn load(path: &Path, options: &NetworkOptions) -> Result<Box<dyn Recognizer>, SpeechError> {
    let network = load_network(path, options).map_err(|error| SpeechError::Load(error.to_string()))?;
    let transcriber = Transcriber::new(network, path).map_err(|error| SpeechError::Load(error.to_string()))?;
    Ok(Box::new(transcriber))
}

/// The speech model of that name; without a name the default one.
pub(crate) fn find(store: &Store, name: Option<&str>) -> anyhow::Result<ModelEntry> {
    let entry = match name {
        Some(name) => store.find(name)?,
        None => choose(store.list()?)?,
    };
    if !is_speech(&entry) {
        return Err(ChoiceError::Text(entry.name).into());
    }
    match entry.problem {
        Some(problem) => Err(ChoiceError::Unusable { name: entry.name, problem }.into()),
        None => Ok(entry),
    }
}

/// The default speech model: the only usable one, else the first of the preferred ones.
pub(crate) fn choose(entries: Vec<ModelEntry>) -> Result<ModelEntry, ChoiceError> {
    let usable = |entry: &ModelEntry| is_speech(entry) && entry.problem.is_none();
    let mut speech: Vec<ModelEntry> = entries.into_iter().filter(usable).collect();
    let index = match speech.as_slice() {
        [] => return Err(ChoiceError::NoSpeech),
        [_] => Some(0),
        several => PREFERRED.iter().find_map(|part| several.iter().position(|entry| entry.name.ends_with(part))),
    };
    match index {
        Some(index) => Ok(speech.swap_remove(index)),
        None => Err(ChoiceError::SeveralSpeech(speech.into_iter().map(|entry| entry.name).collect())),
    }
}

fn language(text: &str) -> Result<Language, String> {
    Language::find(text).ok_or_else(|| "expected a language, such as `de` or `german`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::test_entry as entry;
    use linnet_library::ModelKind;

    #[test]
    fn the_default_is_the_only_speech_model_or_the_best_known() {
        let chosen = |entries: Vec<ModelEntry>| choose(entries).map(|entry| entry.name);
        assert_eq!(chosen(vec![entry("chat", ModelKind::Text)]), Err(ChoiceError::NoSpeech));
        assert_eq!(chosen(vec![entry("chat", ModelKind::Text), entry("tiny", ModelKind::Speech)]), Ok("tiny".into()));
        let two =
            vec![entry("openai/whisper-tiny.en", ModelKind::Speech), entry("openai/whisper-base", ModelKind::Speech)];
        assert_eq!(chosen(two), Ok("openai/whisper-base".into()));
        let unknown = vec![entry("a", ModelKind::Speech), entry("b", ModelKind::Speech)];
        assert_eq!(chosen(unknown), Err(ChoiceError::SeveralSpeech(vec!["a".into(), "b".into()])));
    }
}
