//! clang, and what it has compiled already.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::{Command, Output, id},
    sync::atomic::{AtomicU64, Ordering},
};

use linnet_kernels::metal::Launch;

use crate::{Argument, HostError, generate, rewrite};

/// The major version of clang that the runner is written for. Older ones lack what the headers use.
pub(crate) const CLANG_VERSION: u32 = 19;

/// The language: what Metal 3 is based on. A number with a point and no suffix is a float there.
const LANGUAGE: [&str; 7] =
    ["-std=c++14", "-x", "c++", "-fsigned-char", "-nostdinc++", "-Xclang", "-cl-single-precision-constant"];

/// Warnings that are errors in kernels: what they name means something else on a GPU, or nothing.
const WARNINGS: [&str; 13] = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pedantic",
    "-Wimplicit-float-conversion",
    "-Wimplicit-int-float-conversion",
    "-Wshadow",
    "-Wvla",
    "-Wno-unknown-attributes",
    "-Wno-unused-parameter",
    "-Wno-duplicate-decl-specifier",
    "-Wno-gnu-zero-variadic-macro-arguments",
    "-Wno-ignored-attributes",
];

/// How kernels are compiled to run.
const RUN: [&str; 19] = [
    "-O1",
    "-g1",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-ffp-contract=off",
    "-flax-vector-conversions=none",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize=vptr,function",
    "-fno-sanitize-recover=all",
    "-fsanitize-address-use-after-return=never",
    "-fsanitize-coverage=func,trace-loads,trace-stores",
    "-fprofile-instr-generate",
    "-fcoverage-mapping",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
];

/// How the runner is compiled.
const RUNTIME: [&str; 6] =
    ["-std=c++17", "-O2", "-g1", "-fno-exceptions", "-fsanitize=address", "-fsanitize-address-use-after-return=never"];

const RUNTIME_FILES: [&str; 3] = ["main.cpp", "memory.cpp", "scheduler.cpp"];

/// clang and the folder for what it makes.
#[derive(Debug, Clone)]
pub struct Toolchain {
    compiler: PathBuf,
    folder: PathBuf,
}

impl Toolchain {
    /// Finds clang. `LINNET_CLANG` names another than `clang++-19`; what is built goes below cargo's target folder.
    ///
    /// # Errors
    /// When there is no such clang.
    pub fn find() -> Result<Toolchain, HostError> {
        let compiler = env::var_os("LINNET_CLANG").unwrap_or_else(|| format!("clang++-{CLANG_VERSION}").into());
        let toolchain = Toolchain { compiler: compiler.into(), folder: target_folder().join("metal-host") };
        let version = output(Command::new(&toolchain.compiler).arg("--version"))?;
        let text = String::from_utf8_lossy(&version.stdout).into_owned();
        if !text.contains(&format!("clang version {CLANG_VERSION}.")) {
            return Err(HostError::Toolchain {
                tool: toolchain.compiler.display().to_string(),
                detail: format!("version {CLANG_VERSION} is wanted, found {}", text.lines().next().unwrap_or("none")),
            });
        }
        Ok(toolchain)
    }

    /// The folder for everything built: `runtime/`, `sources/`, `programs/` and `profiles/`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A companion of clang, such as `llvm-cov`: its whole path, or its name where PATH does not have it.
    #[must_use]
    pub fn companion(&self, name: &str) -> PathBuf {
        let name = format!("{name}-{CLANG_VERSION}");
        let folders = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| path.exists()).unwrap_or(name.into())
    }

    /// The program for a launch, compiled unless it is there already.
    pub(crate) fn program(&self, launch: &Launch, inputs: &[Argument]) -> Result<PathBuf, HostError> {
        let text = self.generate(launch, inputs, rewrite::Mode::Run)?;
        let runtime = self.runtime()?;
        let mut arguments: Vec<String> =
            [&LANGUAGE[..], &WARNINGS, &RUN].concat().into_iter().map(str::to_owned).collect();
        arguments.push(format!("-isystem{}", include_folder().display()));
        let key = hash(&(&text, &arguments, &runtime, headers()?, sources_text(launch)));
        let program = self.folder.join("programs").join(format!("{}-{key:016x}", launch.kernel.name));
        if program.exists() {
            return Ok(program);
        }
        let source = self.write("programs", &format!("{}-{key:016x}.cpp", launch.kernel.name), &text)?;
        let scratch = scratch_name(&program);
        let mut command = Command::new(&self.compiler);
        command.args(&arguments).arg(&source).args(["-x", "none"]).args(&runtime);
        // Linking the sanitizers' runtime in would cost as much as compiling the kernel.
        command.args(["-shared-libasan", "--rtlib=compiler-rt", "-lm", "-o"]).arg(&scratch);
        command.arg(format!("-Wl,-rpath,{}", self.resource_folder()?.display()));
        compile(launch.kernel.name, &mut command)?;
        fs::rename(&scratch, &program).map_err(HostError::io(&program))?;
        Ok(program)
    }

    /// Compiles a launch with real address spaces, for its errors alone.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn check(&self, launch: &Launch, inputs: &[Argument]) -> Result<(), HostError> {
        let text = self.generate(launch, inputs, rewrite::Mode::Check)?;
        let key = hash(&(&text, sources_text(launch)));
        let source = self.write("checks", &format!("{}-{key:016x}.cpp", launch.kernel.name), &text)?;
        let mut command = Command::new(&self.compiler);
        command.args([&LANGUAGE[..], &WARNINGS].concat());
        command.args(["-fsyntax-only", "-DLINNET_HOST_CHECK"]).arg(format!("-isystem{}", include_folder().display()));
        compile(launch.kernel.name, command.arg(&source))
    }

    fn generate(&self, launch: &Launch, inputs: &[Argument], mode: rewrite::Mode) -> Result<String, HostError> {
        let folder = match mode {
            rewrite::Mode::Run => "sources",
            rewrite::Mode::Check => "checked-sources",
        };
        let files = || launch.kernel.functions.iter().chain([&launch.kernel.body]);
        let constants = files().flat_map(|file| rewrite::function_constants(file.text)).collect();
        for file in files() {
            self.write(folder, file.name, &rewrite::rewrite(file.name, file.text, &constants, mode)?)?;
        }
        let path = |name: &str| self.folder.join(folder).join(name).display().to_string();
        Ok(generate::generate(launch, inputs, path)?.text)
    }

    /// Where clang keeps its runtime libraries.
    fn resource_folder(&self) -> Result<PathBuf, HostError> {
        let output = output(Command::new(&self.compiler).arg("--print-resource-dir"))?;
        Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("lib/linux"))
    }

    /// The runner's object files.
    fn runtime(&self) -> Result<Vec<PathBuf>, HostError> {
        let folder = runtime_folder();
        let texts: Vec<String> = ["context.h", "memory.h", "scheduler.h"]
            .iter()
            .chain(&RUNTIME_FILES)
            .map(|name| fs::read_to_string(folder.join(name)).map_err(HostError::io(folder.join(name))))
            .collect::<Result<_, _>>()?;
        let key = hash(&(texts, headers()?, RUNTIME));
        let mut objects = Vec::new();
        for name in RUNTIME_FILES {
            let object = self.folder.join("runtime").join(format!("{key:016x}-{name}.o"));
            if !object.exists() {
                make_folder(&self.folder.join("runtime"))?;
                let scratch = scratch_name(&object);
                let mut command = Command::new(&self.compiler);
                command.args(RUNTIME).arg("-c").arg(folder.join(name)).arg("-o").arg(&scratch);
                compile(name, &mut command)?;
                fs::rename(&scratch, &object).map_err(HostError::io(&object))?;
            }
            objects.push(object);
        }
        Ok(objects)
    }

    /// Writes a file unless it has that text already. Whole or not at all, since tests run side by side.
    fn write(&self, folder: &str, name: &str, text: &str) -> Result<PathBuf, HostError> {
        let path = self.folder.join(folder).join(name);
        if fs::read_to_string(&path).is_ok_and(|present| present == text) {
            return Ok(path);
        }
        make_folder(path.parent().unwrap_or(&self.folder))?;
        let scratch = scratch_name(&path);
        fs::write(&scratch, text).map_err(HostError::io(&scratch))?;
        fs::rename(&scratch, &path).map_err(HostError::io(&path))?;
        Ok(path)
    }
}

/// Cargo's target folder, without `..`: clang leaves that out of the paths it writes into coverage, which are compared
/// with this one.
fn target_folder() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = package.ancestors().nth(2).unwrap_or(package);
    workspace.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn runtime_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime")
}

/// The text of all headers of `include/linnet_host`, so that programs are made again when one changes.
fn headers() -> Result<Vec<String>, HostError> {
    let folder = include_folder().join("linnet_host");
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .map_err(HostError::io(&folder))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .collect();
    paths.push(include_folder().join("metal_stdlib"));
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).map_err(HostError::io(path))).collect()
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A name beside `path` that no other thread or process uses.
fn scratch_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}", id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    name.into()
}

fn sources_text(launch: &Launch) -> Vec<&'static str> {
    launch.kernel.functions.iter().chain([&launch.kernel.body]).map(|file| file.text).collect()
}

fn output(command: &mut Command) -> Result<Output, HostError> {
    command.output().map_err(|error| HostError::Toolchain {
        tool: command.get_program().to_string_lossy().into_owned(),
        detail: error.to_string(),
    })
}

fn make_folder(folder: &Path) -> Result<(), HostError> {
    fs::create_dir_all(folder).map_err(HostError::io(folder))
}

fn compile(what: &str, command: &mut Command) -> Result<(), HostError> {
    let output = output(command)?;
    if output.status.success() {
        return Ok(());
    }
    let diagnostics = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(HostError::Compile { kernel: what.to_owned(), diagnostics })
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use super::target_folder;

    /// With `..` in it, no line of coverage was found: clang writes paths without.
    #[test]
    fn the_target_folder_is_named_as_coverage_names_it() {
        let folder = target_folder();
        assert!(folder.is_absolute(), "{}", folder.display());
        assert!(!folder.components().any(|part| part == Component::ParentDir), "{}", folder.display());
    }
}
