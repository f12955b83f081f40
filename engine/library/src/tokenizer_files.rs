//! Which files a tokenizer can be made from: the engine's rule, told before anything is downloaded or imported.

use std::path::Path;

use serde_json::Value;

use crate::disk;

/// The file that holds a whole tokenizer.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// What older folders have in its place.
pub(crate) const VOCABULARY_AND_MERGES: [&str; 2] = ["vocab.json", "merges.txt"];
/// Forms that are not read.
const OTHER_FORMS: [&str; 3] = ["tokenizer.model", "vocab.json", "tekken.json"];
/// The kind of tokenizer that vocabulary and merges describe in full.
const GPT2: &str = "GPT2Tokenizer";
/// The largest tokenizer_config.json has some megabytes.
const CONFIG_LIMIT: u64 = 16 << 20;

/// Whether files of these names can make a tokenizer, or why not, with the remedy. Of vocabulary and merges that
/// depends on what tokenizer_config.json says, too: [`check_folder`].
pub(crate) fn check_names(has: impl Fn(&str) -> bool) -> Result<(), String> {
    if has(TOKENIZER) || VOCABULARY_AND_MERGES.into_iter().all(&has) {
        return Ok(());
    }
    Err(match OTHER_FORMS.into_iter().find(|name| has(name)) {
        Some(name) => format!(
            "it has {name} but no tokenizer.json; make one with \
             transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        ),
        None => "tokenizer.json is missing; fetch it from the model's page into the folder".into(),
    })
}

/// Whether a folder's files can make a tokenizer, or why not, with the remedy.
pub(crate) fn check_folder(folder: &Path) -> Result<(), String> {
    // A link whose target is gone is there too: opening it gives the better error.
    check_names(|name| folder.join(name).symlink_metadata().is_ok())?;
    if folder.join(TOKENIZER).symlink_metadata().is_ok() {
        return Ok(());
    }
    let config = disk::read_json(&folder.join("tokenizer_config.json"), CONFIG_LIMIT).unwrap_or(Value::Null);
    match config["tokenizer_class"].as_str() {
        Some(class) if !class.starts_with(GPT2) => Err(format!(
            "vocab.json and merges.txt do not tell how {class} splits words; make a tokenizer.json with \
             transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_that_the_engine_reads_is_not_refused() {
        let check = |names: &[&str]| check_names(|name| names.contains(&name));
        check(&["tokenizer.json"]).unwrap();
        check(&["vocab.json", "merges.txt"]).unwrap();
        assert!(check(&["vocab.json"]).unwrap_err().contains("vocab.json"));
        assert!(check(&["tokenizer.model", "merges.txt"]).unwrap_err().contains("tokenizer.model"));
        assert!(check(&[]).unwrap_err().contains("tokenizer.json is missing"));

        let folder = tempfile::tempdir().unwrap();
        for name in VOCABULARY_AND_MERGES {
            std::fs::write(folder.path().join(name), "{}").unwrap();
        }
        check_folder(folder.path()).unwrap();
        for (class, is_fine) in [("GPT2TokenizerFast", true), ("Qwen2Tokenizer", false)] {
            let text = serde_json::json!({ "tokenizer_class": class }).to_string();
            std::fs::write(folder.path().join("tokenizer_config.json"), text).unwrap();
            assert_eq!(check_folder(folder.path()).is_ok(), is_fine, "{class}");
        }
    }
}
