//! Which of a repository's files a model needs.

use crate::PullError;

use super::listing::{RemoteFile, RepositoryListing};

/// Largest JSON file that is taken for part of a model, in bytes. Tokenizers reach 40 MB; beyond lie data sets.
const LARGEST_JSON: u64 = 128 << 20;

/// Logs of training runs that often lie beside a model.
const TRAINING_LOGS: [&str; 5] =
    ["trainer_state.json", "all_results.json", "train_results.json", "eval_results.json", "training_params.json"];

/// What the caller wants of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FileSelection {
    /// The model as safetensors with all that belongs to it; the one GGUF file, if there are no safetensors.
    #[default]
    Model,
    /// One GGUF file by its name, or by a part of it that no other has (such as `Q4_K_M`).
    Gguf(String),
}

/// The files to download.
#[derive(Clone, Debug, PartialEq)]
pub enum ChosenFiles {
    /// A folder with configuration, tokenizer and safetensors.
    Folder(Vec<RemoteFile>),
    /// One GGUF file, or all parts of a split one in their order.
    Gguf(Vec<RemoteFile>),
}

impl ChosenFiles {
    /// The files, whatever they make up.
    pub fn files(&self) -> &[RemoteFile] {
        match self {
            Self::Folder(files) | Self::Gguf(files) => files,
        }
    }
}

/// Chooses the files to download: of two forms of the same weights only one, never a format that can carry code,
/// and nothing that no model needs.
///
/// # Errors
/// When the repository holds nothing that we read, or when the user must name a file.
pub fn choose_files(listing: &RepositoryListing, selection: &FileSelection) -> Result<ChosenFiles, PullError> {
    match selection {
        FileSelection::Gguf(wanted) => choose_named_gguf(listing, wanted).map(ChosenFiles::Gguf),
        FileSelection::Model => {
            let weights = choose_safetensors(listing);
            if !weights.is_empty() {
                return choose_folder(listing, &weights).map(ChosenFiles::Folder);
            }
            choose_only_gguf(listing).map(ChosenFiles::Gguf)
        }
    }
}

fn choose_folder(listing: &RepositoryListing, weights: &[RemoteFile]) -> Result<Vec<RemoteFile>, PullError> {
    let has = |name: &str| listing.files.iter().any(|file| file.name == name);
    if !has("config.json") {
        let adapter = has("adapter_config.json");
        return Err(PullError::NoConfiguration { id: listing.id.clone(), adapter });
    }
    let chosen = listing.files.iter().filter(|file| is_companion(file) || weights.contains(file));
    Ok(chosen.cloned().collect())
}

/// The weights in the repository's main folder, without second forms of the same ones.
fn choose_safetensors(listing: &RepositoryListing) -> Vec<RemoteFile> {
    let weights: Vec<&RemoteFile> =
        listing.files.iter().filter(|file| !file.name.contains('/') && file.name.ends_with(".safetensors")).collect();
    let is_main = |name: &str| name == "model.safetensors" || name.starts_with("model-");
    let has_main = weights.iter().any(|file| is_main(&file.name) && !is_variant(&file.name));
    let is_second_form = |name: &str| has_main && (name.starts_with("consolidated") || is_variant(name));
    weights.into_iter().filter(|file| !is_second_form(&file.name)).cloned().collect()
}

/// `model.fp16.safetensors`, `model-00001-of-00002.fp16.safetensors` and the like: the same weights in another type.
fn is_variant(name: &str) -> bool {
    let stem = name.strip_suffix(".safetensors").unwrap_or(name);
    stem.starts_with("model") && stem.contains('.')
}

/// Configuration, tokenizer and template: what stands beside the weights.
fn is_companion(file: &RemoteFile) -> bool {
    let name = file.name.as_str();
    if let Some(template) = name.strip_prefix("additional_chat_templates/") {
        return !template.contains('/') && template.ends_with(".jinja");
    }
    if name.contains('/') {
        return false;
    }
    if name.ends_with(".json") {
        return !TRAINING_LOGS.contains(&name) && file.size.is_none_or(|size| size <= LARGEST_JSON);
    }
    let is_vocabulary = matches!(name, "vocab.txt" | "merges.txt" | "vocab.bpe" | "spiece.model");
    let is_tokenizer = name.starts_with("tokenizer") && !is_pickle(name);
    is_vocabulary || is_tokenizer || name.ends_with(".jinja") || name.ends_with(".tiktoken")
}

/// Weights in formats that can carry code or that we do not read.
fn is_pickle(name: &str) -> bool {
    [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".onnx"].iter().any(|ending| name.ends_with(ending))
}

/// GGUF files that hold a whole language model: not the vision projectors that lie beside some.
fn ggufs(listing: &RepositoryListing) -> Vec<&RemoteFile> {
    let is_projector = |name: &str| name.rsplit('/').next().unwrap_or(name).to_lowercase().starts_with("mmproj");
    listing.files.iter().filter(|file| is_gguf(&file.name) && !is_projector(&file.name)).collect()
}

fn is_gguf(name: &str) -> bool {
    name.to_lowercase().ends_with(".gguf")
}

fn choose_only_gguf(listing: &RepositoryListing) -> Result<Vec<RemoteFile>, PullError> {
    let files = ggufs(listing);
    let Some(first) = files.first() else {
        let pickles = listing.files.iter().map(|file| file.name.clone()).filter(|name| is_pickle(name)).collect();
        return Err(PullError::NoWeights { id: listing.id.clone(), pickles });
    };
    let parts = parts_of(&files, first);
    if parts.len() < files.len() {
        return Err(PullError::ChooseGguf { id: listing.id.clone(), files: sizes(&files) });
    }
    Ok(parts)
}

fn choose_named_gguf(listing: &RepositoryListing, wanted: &str) -> Result<Vec<RemoteFile>, PullError> {
    if let Some(file) = listing.files.iter().find(|file| file.name == wanted && is_gguf(wanted)) {
        return Ok(parts_of(&ggufs(listing), file));
    }
    let files = ggufs(listing);
    let fitting: Vec<&RemoteFile> =
        files.iter().copied().filter(|file| file.name.to_lowercase().contains(&wanted.to_lowercase())).collect();
    if let Some(first) = fitting.first() {
        let parts = parts_of(&files, first);
        if fitting.iter().all(|file| parts.contains(file)) {
            return Ok(parts);
        }
    }
    let several = !fitting.is_empty();
    let meant = if several { fitting } else { files };
    Err(PullError::NoSuchFile { id: listing.id.clone(), wanted: wanted.to_owned(), several, files: sizes(&meant) })
}

/// The file itself, or all parts if it is one of `NAME-00001-of-00003.gguf`.
fn parts_of(files: &[&RemoteFile], file: &RemoteFile) -> Vec<RemoteFile> {
    let Some((stem, count)) = split_part(&file.name) else { return vec![file.clone()] };
    let mut parts: Vec<RemoteFile> = files
        .iter()
        .filter(|other| split_part(&other.name) == Some((stem, count)))
        .map(|part| (*part).clone())
        .collect();
    parts.sort_by(|one, other| one.name.cmp(&other.name));
    parts
}

/// `("NAME", "00003")` of `NAME-00001-of-00003.gguf`.
fn split_part(name: &str) -> Option<(&str, &str)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, index) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(index) && is_number(count)).then_some((stem, count))
}

fn sizes(files: &[&RemoteFile]) -> Vec<(String, u64)> {
    files.iter().map(|file| (file.name.clone(), file.size.unwrap_or(0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> RepositoryListing {
        let files = names.iter().map(|name| RemoteFile { name: (*name).into(), size: Some(10), hash: None }).collect();
        RepositoryListing { id: "a/b".into(), commit: "c".into(), files }
    }

    fn chosen(names: &[&str], selection: &FileSelection) -> Result<Vec<String>, PullError> {
        choose_files(&listing(names), selection)
            .map(|chosen| chosen.files().iter().map(|file| file.name.clone()).collect())
    }

    fn model(names: &[&str]) -> Result<Vec<String>, PullError> {
        chosen(names, &FileSelection::Model)
    }

    #[test]
    fn a_model_is_its_weights_configuration_and_tokenizer() {
        let names = [
            ".gitattributes",
            "README.md",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.json",
            "merges.txt",
            "chat_template.jinja",
            "trainer_state.json",
            "additional_chat_templates/tool_use.jinja",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "run.py",
            "original/consolidated.00.pth",
            "original/params.json",
            "model.Q4_K_M.gguf",
            "training_args.bin",
        ];
        let expected = [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.json",
            "merges.txt",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
        ];
        assert_eq!(model(&names).unwrap(), expected);
    }

    #[test]
    fn the_same_weights_are_not_taken_twice() {
        let shards = ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let with_second_forms = [
            &shards[..],
            &["consolidated.safetensors", "model.fp16.safetensors", "model-00001-of-00002.fp16.safetensors"],
        ];
        assert_eq!(model(&with_second_forms.concat()).unwrap(), shards);
        let only_consolidated = ["config.json", "consolidated.safetensors"];
        assert_eq!(model(&only_consolidated).unwrap(), only_consolidated);
        let side = ["config.json", "model.safetensors", "optiq_vision.safetensors"];
        assert_eq!(model(&side).unwrap(), side);
    }

    #[test]
    fn what_is_no_whole_model_is_told_before_anything_is_downloaded() {
        let pickles = model(&["config.json", "pytorch_model.bin"]).unwrap_err().to_string();
        assert!(pickles.contains("pytorch_model.bin"), "{pickles}");
        let adapter = model(&["adapter_config.json", "adapters.safetensors"]).unwrap_err();
        assert!(matches!(adapter, PullError::NoConfiguration { adapter: true, .. }));
    }

    #[test]
    fn one_gguf_is_taken_and_several_are_listed() {
        assert_eq!(model(&["m.Q4_0.gguf", "mmproj-m.gguf", "config.json"]).unwrap(), ["m.Q4_0.gguf"]);
        let split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(model(&split).unwrap(), split);
        let several = ["m.Q4_0.gguf", "m.Q4_K_M.gguf", "m.Q4_K_S.gguf"];
        let error = model(&several).unwrap_err().to_string();
        assert!(several.iter().all(|name| error.contains(name)), "{error}");
        let named = |wanted: &str| chosen(&several, &FileSelection::Gguf(wanted.into()));
        assert_eq!(named("m.Q4_0.gguf").unwrap(), ["m.Q4_0.gguf"]);
        assert_eq!(named("q4_k_m").unwrap(), ["m.Q4_K_M.gguf"]);
        assert!(matches!(named("Q4_K"), Err(PullError::NoSuchFile { several: true, .. })));
        assert!(matches!(named("Q8_0"), Err(PullError::NoSuchFile { several: false, .. })));
        let parts = chosen(&["x.gguf", split[1], split[0]], &FileSelection::Gguf(split[1].into()));
        assert_eq!(parts.unwrap(), split);
    }
}
