//! The user's hub token: where it is found, and how it is kept out of sight.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use reqwest::header::HeaderValue;

use crate::PullError;

/// A hub token as a ready request header. Its `Debug` form shows nothing of it.
#[derive(Clone)]
pub(crate) struct Token {
    header: HeaderValue,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(hidden)")
    }
}

impl Token {
    /// Takes the token's text, as `from` gave it; `None` if it is blank.
    pub(crate) fn new(text: &str, from: &str) -> Result<Option<Self>, PullError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let refused = || PullError::BadToken { from: from.to_owned() };
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refused());
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| refused())?;
        header.set_sensitive(true);
        Ok(Some(Self { header }))
    }

    /// Finds the token as the hub's own tools do: `HF_TOKEN`, then the file at `HF_TOKEN_PATH`, `HF_HOME/token`,
    /// `XDG_CACHE_HOME/huggingface/token` or `~/.cache/huggingface/token`. A file that is not there is no error.
    pub(crate) fn find(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Self>, PullError> {
        if let Some(text) = variable("HF_TOKEN") {
            let text = text.into_string().map_err(|_| PullError::BadToken { from: "HF_TOKEN".to_owned() })?;
            if let Some(token) = Self::new(&text, "HF_TOKEN")? {
                return Ok(Some(token));
            }
        }
        let Some(path) = token_file(variable) else { return Ok(None) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::new(&text, &path.display().to_string()),
            Err(_) => Ok(None),
        }
    }

    /// The value of the `Authorization` header, marked as sensitive.
    pub(crate) fn header(&self) -> HeaderValue {
        self.header.clone()
    }
}

fn token_file(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = folder("HF_TOKEN_PATH") {
        return Some(path);
    }
    let home = folder("HF_HOME")
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache").join("huggingface")))?;
    Some(home.join("token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Option<String> {
        let lookup =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let token = Token::find(&lookup).unwrap()?;
        Some(token.header().to_str().unwrap().to_owned())
    }

    #[test]
    fn the_variable_comes_before_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(find(&[("HF_TOKEN", " hf_variable "), ("HF_HOME", home)]).unwrap(), "Bearer hf_variable");
        assert_eq!(find(&[("HF_TOKEN", ""), ("HF_HOME", home)]).unwrap(), "Bearer hf_file");
        let cache = folder.path().join(".cache/huggingface");
        std::fs::create_dir_all(&cache).unwrap();
        std::fs::write(cache.join("token"), "hf_home").unwrap();
        assert_eq!(find(&[("HOME", home)]).unwrap(), "Bearer hf_home");
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[("HF_HOME", "/nowhere/at/all")]), None);
    }

    #[test]
    fn a_token_of_two_lines_is_refused_without_showing_it() {
        let error = Token::new("hf_secret\r\nHost: evil", "HF_TOKEN").unwrap_err().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("hf_secret"), "{error}");
    }

    #[test]
    fn debug_output_does_not_hold_the_token() {
        let token = Token::new("hf_secret", "HF_TOKEN").unwrap().unwrap();
        assert!(!format!("{token:?} {:?}", token.header()).contains("hf_secret"));
    }
}
