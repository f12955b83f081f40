//! The two forms of Metal that no macro can turn into C++: threadgroup variables and function constants.
//!
//! `threadgroup float sums[32];` in a body becomes a reference to memory that the runner owns, because all fibers of a
//! group share it; to clang it would be a variable of each thread. `constant bool masked [[function_constant(3)]];`
//! becomes a macro. Lines stay where they are.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::{Captures, Regex};

use crate::HostError;

#[allow(clippy::unwrap_used, reason = "the patterns are literals, and every test compiles them")]
static VARIABLE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)(^|[;{}])([ \t]*)threadgroup\s+([A-Za-z_][\w:]*(?:<[^;<>]*>)?)\s+([A-Za-z_]\w*)\s*((?:\[[^\];]*\]\s*)*)([;=,])")
        .unwrap()
});
#[allow(clippy::unwrap_used, reason = "as above")]
static CONSTANT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?m)^[ \t]*constant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\(\s*(\d+)\s*\)\s*\]\]\s*;[ \t]*$")
        .unwrap()
});

/// For what a source is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To run.
    Run,
    /// To check address spaces.
    Check,
}

/// The function constants that a text declares, with their indices.
pub(crate) fn function_constants(text: &str) -> Vec<(String, String)> {
    CONSTANT.captures_iter(text).map(|found| (found[2].to_owned(), found[3].to_owned())).collect()
}

/// The text for clang. `constants` are the [`function_constants`] of all files of the kernel.
pub(crate) fn rewrite(
    file: &str,
    text: &str,
    constants: &BTreeMap<String, String>,
    mode: Mode,
) -> Result<String, HostError> {
    for captures in VARIABLE.captures_iter(text) {
        if &captures[6] != ";" {
            let start = captures.get(3).map_or(0, |part| part.start());
            return Err(HostError::Source {
                file: file.to_owned(),
                line: text[..start].matches('\n').count() + 1,
                message: "a threadgroup variable has no initializer and its own declaration".to_owned(),
            });
        }
    }
    let text = VARIABLE.replace_all(text, |captures: &Captures<'_>| {
        let [before, space, kind, name, sizes] = [1, 2, 3, 4, 5].map(|index| &captures[index]);
        let newlines = "\n".repeat(captures[0][before.len()..].matches('\n').count());
        match mode {
            Mode::Run => format!(
                "{before}{space}auto& {name} = ::linnet_host::threadgroup_variable<{kind}{}>(\"{name}\");{newlines}",
                sizes.trim_end()
            ),
            Mode::Check => format!("{before}{space}static threadgroup {kind} {name}{};{newlines}", sizes.trim_end()),
        }
    });
    let mut text = CONSTANT.replace_all(&text, "#define $2 ::linnet_host::function_constant<$1>($3)").into_owned();
    for (name, index) in constants {
        text = text.replace(
            &format!("is_function_constant_defined({name})"),
            &format!("::linnet_host::function_constant_defined({index})"),
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{Mode, function_constants};

    fn rewrite(file: &str, text: &str, mode: Mode) -> Result<String, crate::HostError> {
        super::rewrite(file, text, &function_constants(text).into_iter().collect(), mode)
    }

    #[test]
    fn threadgroup_variables_become_shared_memory() {
        let text = "  threadgroup float sums[4][N];\n  threadgroup\n    uint count;\n  threadgroup float* p = sums;\n";
        assert_eq!(
            rewrite("k", text, Mode::Run).unwrap(),
            "  auto& sums = ::linnet_host::threadgroup_variable<float[4][N]>(\"sums\");\n  \
             auto& count = ::linnet_host::threadgroup_variable<uint>(\"count\");\n\n  threadgroup float* p = sums;\n"
        );
        assert_eq!(
            rewrite("k", text, Mode::Check).unwrap(),
            "  static threadgroup float sums[4][N];\n  static threadgroup uint count;\n\n  threadgroup float* p = sums;\n"
        );
    }

    #[test]
    fn pointers_parameters_and_comments_stay() {
        let text =
            "f(threadgroup float* x, threadgroup uint& y);\n// threadgroup float sums;\nthreadgroup_barrier(x);\n";
        assert_eq!(rewrite("k", text, Mode::Run).unwrap(), text);
    }

    #[test]
    fn initialized_threadgroup_variable_is_refused() {
        let error = rewrite("k.metal", "x;\nthreadgroup uint n = 3;\n", Mode::Run).unwrap_err();
        assert_eq!(error.to_string(), "k.metal:2: a threadgroup variable has no initializer and its own declaration");
        assert!(rewrite("k.metal", "threadgroup uint n, m;\n", Mode::Run).is_err());
    }

    #[test]
    fn function_constants_become_calls() {
        let text = "constant bool masked [[function_constant(3)]];\nif (is_function_constant_defined(masked)) {}\n";
        assert_eq!(
            rewrite("k", text, Mode::Run).unwrap(),
            "#define masked ::linnet_host::function_constant<bool>(3)\n\
             if (::linnet_host::function_constant_defined(3)) {}\n"
        );
    }
}
