//! What kind of thing a path leads to.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::config::{CONFIG_NAME, Config};
use crate::disk;
use crate::error::{IoContext as _, LibraryError};
use crate::whisper::dimensions::MODEL_TYPE;
use crate::whisper::{Form, ggml};

/// How many models an error about a folder of them names.
const MODELS_NAMED: usize = 8;

/// Something that can be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Detected {
    /// A folder with a `config.json`.
    Folder(PathBuf),
    /// A folder with CTranslate2's `model.bin`.
    Ctranslate2(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// A Whisper model.
    Whisper(Form, PathBuf),
}

/// Looks at a path; anything else than a model is refused with what it seems to be.
pub(crate) fn detect(path: &Path) -> Result<Detected, LibraryError> {
    let metadata = std::fs::metadata(path).map_err(|source| disk::explain_link(path, source)).at("open", path)?;
    if metadata.is_dir() { detect_folder(path) } else { detect_file(path) }
}

fn unknown(path: &Path, reason: impl Into<String>) -> LibraryError {
    LibraryError::UnknownSource { path: path.to_owned(), reason: reason.into() }
}

fn detect_file(path: &Path) -> Result<Detected, LibraryError> {
    let mut magic = Vec::new();
    File::open(path).at("open", path)?.take(4).read_to_end(&mut magic).at("read", path)?;
    if magic == b"GGUF" {
        return Ok(Detected::Gguf(path.to_owned()));
    }
    if magic == ggml::MAGIC {
        return Ok(Detected::Whisper(Form::Ggml, path.to_owned()));
    }
    let name = disk::file_name_text(path).to_lowercase();
    if magic.is_empty() {
        return Err(unknown(path, "it is an empty file; fetch it again"));
    }
    if name.ends_with(".gguf") {
        return Err(unknown(path, "it is called .gguf but does not begin with \"GGUF\"; fetch it again"));
    }
    if name.ends_with(".safetensors") || name.ends_with(".json") || name.ends_with(".npz") {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return Err(unknown(path, format!("it is one file of a model; name the folder instead: {}", folder.display())));
    }
    if magic.starts_with(b"PK") || name.ends_with(".tar") || name.ends_with(".gz") {
        return Err(unknown(path, "it is an archive; unpack it and name the folder"));
    }
    Err(unknown(path, "it is neither a folder with a config.json nor a GGUF file nor whisper.cpp's form of Whisper"))
}

fn detect_folder(folder: &Path) -> Result<Detected, LibraryError> {
    if super::ctranslate2::is_folder(folder) {
        return Ok(Detected::Ctranslate2(folder.to_owned()));
    }
    if folder.join(CONFIG_NAME).symlink_metadata().is_ok() {
        let is_whisper =
            Config::read(folder).is_ok_and(|config| config.model_type().is_ok_and(|kind| kind == MODEL_TYPE));
        let folder = folder.to_owned();
        return Ok(if is_whisper { Detected::Whisper(Form::Folder, folder) } else { Detected::Folder(folder) });
    }
    let files = disk::files_of(folder)?;
    let is_gguf = |path: &&PathBuf| disk::file_name_text(path).to_lowercase().ends_with(".gguf");
    let ggufs: Vec<&PathBuf> = files.iter().filter(is_gguf).collect();
    match ggufs.as_slice() {
        [only] => return detect_file(only),
        [] => {}
        several => {
            let names: Vec<String> = several.iter().map(|path| disk::file_name_text(path)).collect();
            return Err(unknown(
                folder,
                format!("it holds several GGUF files; name one of them: {}", names.join(", ")),
            ));
        }
    }
    if let Some(placeholder) = files.iter().find(|path| disk::file_name_text(path).ends_with(".icloud")) {
        return Err(unknown(
            folder,
            format!(
                "its files are still in iCloud ({}); open the folder in the Finder and download it first",
                disk::file_name_text(placeholder)
            ),
        ));
    }
    let models = models_below(folder)?;
    if models.is_empty() {
        return Err(unknown(folder, "it holds neither a config.json nor a GGUF file"));
    }
    let more = models.len().saturating_sub(MODELS_NAMED);
    let rest = if more == 0 { String::new() } else { format!(" and {more} more") };
    let named = models[..models.len() - more].join(", ");
    Err(unknown(folder, format!("it is a folder of several models; name one of them: {named}{rest}")))
}

/// Paths of the models one or two folders further down.
fn models_below(folder: &Path) -> Result<Vec<String>, LibraryError> {
    let mut models = Vec::new();
    for path in folders_of(folder)? {
        if path.join(CONFIG_NAME).is_file() {
            models.push(path.display().to_string());
            continue;
        }
        let inner = folders_of(&path).unwrap_or_default();
        models.extend(
            inner.iter().filter(|path| path.join(CONFIG_NAME).is_file()).map(|path| path.display().to_string()),
        );
    }
    Ok(models)
}

fn folders_of(folder: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder).at("list", folder)? {
        let path = entry.at("list", folder)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// The name that a model gets when the user gives none.
pub(crate) fn default_name(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // A hub cache has models--org--name/snapshots/<revision>.
    let hub_name = path.ancestors().nth(2).and_then(|folder| {
        let name = disk::file_name_text(folder);
        Some(name.strip_prefix("models--")?.replacen("--", "/", 1))
    });
    if let Some(name) = hub_name.filter(|name| crate::store::check_name(name).is_ok()) {
        return name;
    }
    let name = disk::file_name_text(&path);
    let is_file = path.is_file();
    let lower = name.to_lowercase();
    let stem = if is_file && lower.ends_with(".gguf") {
        &name[..name.len() - 5]
    } else if is_file && lower.ends_with(".bin") {
        &name[..name.len() - 4]
    } else {
        &name
    };
    crate::store::name_from(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_models_is_refused_with_the_models_in_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("org/a")).unwrap();
        std::fs::write(folder.path().join("org/a/config.json"), "{}").unwrap();
        let text = detect(folder.path()).unwrap_err().to_string();
        assert!(text.contains("org/a") && !text.contains("more"), "{text}");
        for number in 10..40 {
            std::fs::create_dir(folder.path().join(format!("m{number}"))).unwrap();
            std::fs::write(folder.path().join(format!("m{number}/config.json")), "{}").unwrap();
        }
        let text = detect(folder.path()).unwrap_err().to_string();
        assert!(text.contains("m16") && !text.contains("m20") && text.ends_with(" and 23 more"), "{text}");
    }

    #[test]
    fn a_weights_file_is_refused_with_the_name_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, "xxxx").unwrap();
        let text = detect(&path).unwrap_err().to_string();
        assert!(text.contains(&format!("name the folder instead: {}", folder.path().display())), "{text}");
    }

    #[test]
    fn a_hub_snapshot_is_named_after_its_repository() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("models--org--Some-Model/snapshots/0123abcd");
        std::fs::create_dir_all(&snapshot).unwrap();
        assert_eq!(default_name(&snapshot), "org/Some-Model");
        let file = folder.path().join("Größe.Q4_1.gguf");
        std::fs::write(&file, "GGUF").unwrap();
        assert_eq!(default_name(&file), "Größe.Q4_1");
    }

    #[test]
    fn a_placeholder_in_icloud_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".config.json.icloud"), "x").unwrap();
        assert!(detect(folder.path()).unwrap_err().to_string().contains("iCloud"));
    }
}
