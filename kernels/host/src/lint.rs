//! What clang accepts and Apple's compiler does not, as far as text shows it. Mixed address spaces are found by
//! [`Toolchain::check`](crate::Toolchain::check), which has a compiler's eyes.

use std::sync::LazyLock;

use linnet_kernels::metal::{KernelSource, SourceFile};
use regex::Regex;

/// Something that Apple's compiler refuses, or may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: &'static str,
}

struct Rule {
    pattern: Regex,
    message: &'static str,
}

macro_rules! rules {
    ($(($pattern:literal, $message:literal)),* $(,)?) => {
        [$(Rule { pattern: compile($pattern), message: $message }),*]
    };
}

/// Forms that have no place in any file.
static RULES: LazyLock<[Rule; 14]> = LazyLock::new(|| {
    rules![
        (r"\bdouble\b", "Metal has no double precision"),
        (r"[0-9.]+[eE]?[0-9]*[lL]\b", "a literal of a type that Metal does not have"),
        (
            r"\b(new|delete|throw|try|catch|goto|virtual|typeid|dynamic_cast|asm|thread_local|mutable)\b",
            "Metal has no such word"
        ),
        (r"\bstd::", "Metal has no standard library but its own"),
        (r"(?m)^\s*#\s*include", "MLX compiles a kernel as one text: nothing can be included"),
        (r"\[[&=]?[\w, ]*\]\s*\([^)]*\)\s*(->\s*\w+\s*)?\{", "Metal 3 has no lambdas"),
        (r"\b(kernel|vertex|fragment)\b", "a word of the language: MLX writes the signature"),
        (
            r"\((?:u?(?:char|short|int|long)|half|bfloat|float)[234]\)\s*[\w(]",
            "a cast that clang reads as a change of type, Metal as a conversion: write float4(x) or as_type"
        ),
        (
            r"\b(?:static|reinterpret)_cast<\s*(?:u?(?:char|short|int|long)|half|bfloat|float)[234]\s*>",
            "a cast that clang reads as a change of type, Metal as a conversion: write float4(x) or as_type"
        ),
        (r"\bif\s+constexpr\b", "Metal 3 is C++14"),
        (r"\b(printf|assert|malloc|free|memcpy|memset)\s*\(", "Metal has no such function"),
        (
            r"\b(simd_\w+|threadgroup_barrier|simdgroup_barrier)\s*<",
            "functions of the library are called without template arguments"
        ),
        (r"__\w+", "names with two underscores belong to the compiler"),
        (r"[^\x00-\x7f]", "only ASCII"),
    ]
});

/// A declared pointer or reference: the text since the declaration's begin, and the type.
static POINTER: LazyLock<Regex> = LazyLock::new(|| {
    compile(
        r"(?:^|[(,;{}<])([^(),;{}<>=]*?)\b(?:float|half|bfloat|bool|size_t|u?(?:char|short|int|long)|u?int(?:8|16|32|64)_t|(?:u?(?:char|short|int|long)|half|bfloat|float)[234]|atomic_\w+|T|[A-Z]\w*[a-z]\w*)\s*(?:\(\s*)?[*&]\s*\w",
    )
});
static VARIABLE: LazyLock<Regex> =
    LazyLock::new(|| compile(r"(?m)(?:^|[;{}])\s*threadgroup\s+[A-Za-z_][\w:]*\s+[A-Za-z_]\w*\s*[\[;]"));
static GLOBAL: LazyLock<Regex> = LazyLock::new(|| compile(r"(?m)^\s*(?:static\s+)?(?:const|constexpr)\s[^({]*[;=]"));
static STATIC: LazyLock<Regex> = LazyLock::new(|| compile(r"\bstatic\s+[\w:<>]+\s+\w+\s*[;=\[{]"));
static FUNCTION: LazyLock<Regex> =
    LazyLock::new(|| compile(r"\b([A-Za-z_]\w*)\s*\([^(){};]*(?:\([^(){};]*\)[^(){};]*)*\)\s*(?:const\s*)?\{"));

/// All findings in a kernel's files.
#[must_use]
pub fn lint(kernel: &KernelSource) -> Vec<Finding> {
    let mut findings: Vec<Finding> = kernel.functions.iter().flat_map(|file| lint_file(file, false)).collect();
    findings.extend(lint_file(&kernel.body, true));
    findings
}

fn lint_file(file: &SourceFile, is_body: bool) -> Vec<Finding> {
    let text = without_comments(file.text);
    let mut findings = Vec::new();
    let mut find = |at: usize, message| {
        let line = text[..at].matches('\n').count() + 1;
        findings.push(Finding { file: file.name.to_owned(), line, message });
    };
    for rule in &*RULES {
        rule.pattern.find_iter(&text).for_each(|found| find(found.start(), rule.message));
    }
    for found in POINTER.captures_iter(&text) {
        let before = &found[1];
        if !["device", "constant", "threadgroup", "thread"].iter().any(|space| has_word(before, space)) {
            find(found.get(0).map_or(0, |all| all.end()), "a pointer or reference names its address space");
        }
    }
    for found in VARIABLE.find_iter(&text) {
        if !is_body || depth(&text, found.end()) > 0 {
            find(found.end(), "threadgroup variables are declared in the kernel itself, outside of blocks");
        }
    }
    for found in STATIC.find_iter(&text) {
        find(found.start(), "Metal has no static variables");
    }
    if !is_body {
        for found in GLOBAL.find_iter(&text) {
            // Within a namespace's braces only.
            if depth(&text, found.start()) <= 1 && !has_word(found.as_str(), "constant") {
                find(found.end(), "variables outside of functions are constant");
            }
        }
    }
    for found in FUNCTION.captures_iter(&text) {
        let name = &found[1];
        let Some(all) = found.get(0) else { continue };
        let body = block(&text[all.end() - 1..]);
        let calls_itself = call_positions(body, name).next().is_some();
        if calls_itself && !["if", "for", "while", "switch"].contains(&name) {
            find(all.start(), "Metal has no recursion");
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// Calls of exactly `name`: not of a member, nor of a name in another namespace.
fn call_positions<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(name).filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back().unwrap_or(' ');
        let after = text[at + name.len()..].trim_start();
        let is_call = after.starts_with('(') || after.starts_with('<');
        (is_call && !before.is_alphanumeric() && !['_', '.', ':'].contains(&before)).then_some(at)
    })
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// How many braces are open at a place.
fn depth(text: &str, at: usize) -> usize {
    let count = |c| text[..at].matches(c).count();
    count('{').saturating_sub(count('}'))
}

/// The block that begins with the text's first brace.
fn block(text: &str) -> &str {
    let mut open = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => continue,
        }
        if open == 0 {
            return &text[..at];
        }
    }
    text
}

/// Comments become spaces; lines stay.
fn without_comments(text: &str) -> String {
    static COMMENT: LazyLock<Regex> = LazyLock::new(|| compile(r"(?s)//[^\n]*|/\*.*?\*/"));
    COMMENT
        .replace_all(text, |found: &regex::Captures<'_>| {
            found[0].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect::<String>()
        })
        .into_owned()
}

#[allow(clippy::unwrap_used, reason = "the patterns are literals of this file, and a test compiles all of them")]
fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap()
}

#[cfg(test)]
mod tests {
    use linnet_kernels::metal::SourceFile;

    use super::lint_file;

    fn messages(text: &'static str, is_body: bool) -> Vec<(usize, &'static str)> {
        let file = SourceFile { name: "k.metal", text };
        lint_file(&file, is_body).into_iter().map(|finding| (finding.line, finding.message)).collect()
    }

    #[test]
    fn each_rule_finds_its_fault() {
        for (text, part) in [
            ("float f(float x) { double y = x; return y; }", "double"),
            ("const float x = float(1.0L);", "literal"),
            ("int* p = new int[3];", "no such word"),
            ("x = std::max(a, b);", "standard library"),
            ("#include <metal_stdlib>", "included"),
            ("auto f = [&](int x) { return x; };", "lambdas"),
            ("kernel void f() {}", "word of the language"),
            ("const int4 i = (int4)x;", "change of type"),
            ("const int4 i = static_cast<int4>(x);", "change of type"),
            ("if constexpr (A) {}", "C++14"),
            ("memcpy(a, b, 4);", "no such function"),
            ("x = simd_sum<float>(x);", "without template arguments"),
            ("x = __builtin_expf(x);", "underscores"),
            ("x = 1; // ok\ny = 'é';", "ASCII"),
            ("inline float f(const float* x) { return x[0]; }", "address space"),
            ("inline void f(float (&x)[4]) {}", "address space"),
            ("inline void f(device float* a, Running& b) {}", "address space"),
            ("const uint* p = &x;", "address space"),
            ("inline void f() { threadgroup float x[32]; }", "threadgroup variables"),
            ("inline void f() { static int count = 0; }", "static"),
            ("namespace linnet {\nconst float LIMIT = 3.0f;\n}", "constant"),
            ("inline int f(int n) { return n == 0 ? 1 : n * f(n - 1); }", "recursion"),
        ] {
            assert!(messages(text, false).iter().any(|(_, message)| message.contains(part)), "{text}: no {part}");
        }
        assert_eq!(messages("x;\nif (a) {\n  threadgroup float x[32];\n}\n", true).len(), 1);
    }

    #[test]
    fn sound_text_has_no_findings() {
        let text = "
            // double, new, std::
            namespace linnet {
            constant float TABLE[2] = {1.0f, 2.0e-3f};
            struct Sum { static float of_lanes(float value) { return simd_sum(value); } float add(float x) { return other.add(x); } };
            template <typename T> inline T f(const device T* x, threadgroup float* s, thread float (&y)[4], const thread Sum& z) {
              const device T* line = x + 3 * 4;
              const uint n = SIMDGROUPS * HEADS * a;
              return static_cast<T>(float4(y[0]).x) + as_type<float>(n & m);
            }
            }
        ";
        assert_eq!(messages(text, false), []);
        assert_eq!(messages("threadgroup float x[32];\nconst uint n = 3;\nx[n] = a * b;\n", true), []);
    }
}
