//! Which lines of the kernels ran.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use crate::{HostError, Toolchain};

/// The lines of one file that have code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileCoverage {
    /// How often each line ran, by its number.
    pub runs: BTreeMap<usize, u64>,
}

impl FileCoverage {
    /// Lines that ran.
    #[must_use]
    pub fn covered(&self) -> usize {
        self.runs.values().filter(|&&runs| runs > 0).count()
    }

    /// Numbers of lines that never ran.
    #[must_use]
    pub fn missed(&self) -> Vec<usize> {
        self.runs.iter().filter(|&(_, &runs)| runs == 0).map(|(&line, _)| line).collect()
    }
}

/// Reads what the runs since [`clear`] left behind: coverage by file below `kernels/metal`.
///
/// # Errors
/// When nothing was run, or llvm-profdata or llvm-cov fails.
pub fn read(toolchain: &Toolchain) -> Result<BTreeMap<String, FileCoverage>, HostError> {
    let profiles = toolchain.folder().join("profiles");
    let mut raw = Vec::new();
    let mut programs = Vec::new();
    for entry in fs::read_dir(&profiles).map_err(HostError::io(&profiles))? {
        let path = entry.map_err(HostError::io(&profiles))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some((program, _)) = name.strip_suffix(".profraw").and_then(|name| name.split_once('.')) {
            programs.push(toolchain.folder().join("programs").join(program));
            raw.push(path);
        }
    }
    programs.sort();
    programs.dedup();
    let merged = profiles.join("merged.profdata");
    toolchain.tool("llvm-profdata", |command| command.args(["merge", "-sparse", "-o"]).arg(&merged).args(&raw))?;
    let profile = format!("-instr-profile={}", merged.display());
    let objects: Vec<String> = programs.iter().map(|program| format!("-object={}", program.display())).collect();
    let text =
        toolchain.tool("llvm-cov", |command| command.args(["export", "-format=lcov", &profile]).args(&objects))?;
    Ok(parse(&text, &toolchain.folder().join("sources")))
}

/// Forgets earlier runs.
///
/// # Errors
/// When the files cannot be removed.
pub fn clear(toolchain: &Toolchain) -> Result<(), HostError> {
    let profiles = toolchain.folder().join("profiles");
    match fs::remove_dir_all(&profiles) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(HostError::io(&profiles)(error)),
        _ => Ok(()),
    }
}

/// Takes the files of `folder` out of an lcov report; the runner's own tests are left out.
fn parse(lcov: &str, folder: &std::path::Path) -> BTreeMap<String, FileCoverage> {
    let mut files: BTreeMap<String, FileCoverage> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let name = PathBuf::from(path).strip_prefix(folder).map(|name| name.display().to_string()).ok();
            current = name.filter(|name| !name.starts_with("runner/"));
        } else if let (Some(name), Some(data)) = (&current, line.strip_prefix("DA:")) {
            let numbers = data.split_once(',').map(|(line, runs)| (line.parse::<usize>(), runs.parse::<u64>()));
            if let Some((Ok(line), Ok(runs))) = numbers {
                *files.entry(name.clone()).or_default().runs.entry(line).or_default() += runs;
            }
        }
    }
    files
}

impl Toolchain {
    /// Runs a companion of clang and gives its output.
    fn tool(&self, name: &str, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<String, HostError> {
        let mut command = Command::new(self.companion(name));
        let output = arguments(&mut command)
            .output()
            .map_err(|error| HostError::Toolchain { tool: name.to_owned(), detail: error.to_string() })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(HostError::Toolchain {
            tool: name.to_owned(),
            detail: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse;

    #[test]
    fn lcov_is_read_by_file_and_line() {
        let lcov = "SF:/t/sources/a.metal\nFN:1,f\nDA:1,4\nDA:2,0\nend_of_record\n\
                    SF:/t/sources/runner/b.metal\nDA:1,0\nend_of_record\nSF:/t/other.h\nDA:1,0\nend_of_record\n";
        let files = parse(lcov, Path::new("/t/sources"));
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a.metal"]);
        assert_eq!((files["a.metal"].covered(), files["a.metal"].missed()), (1, vec![2]));
    }
}
