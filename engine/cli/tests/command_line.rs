//! The binary from outside: what it prints, and the codes it ends with.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "helpers of tests stand outside of test functions, and json! reads best by value"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `linnet` with a home of its own.
fn linnet(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).stdin(Stdio::null()).output().unwrap()
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linnet"));
    command.args(arguments).env("LINNET_HOME", home).env_remove("LINNET_API_KEY").env_remove("LINNET_LOG");
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn help_tells_a_newcomer_where_to_begin() {
    let home = tempfile::tempdir().unwrap();
    let output = linnet(home.path(), &["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    for piece in ["linnet pull starter", "linnet chat", "linnet serve", "LINNET_HOME", "Exit codes"] {
        assert!(text.contains(piece), "{piece} is missing in\n{text}");
    }
    for name in ["serve", "chat", "pull", "import", "ls", "rm", "inspect", "bench"] {
        let output = linnet(home.path(), &[name, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{name}");
    }
}

#[test]
fn wrong_arguments_end_with_2() {
    let home = tempfile::tempdir().unwrap();
    for arguments in [
        &["dance"][..],
        &[],
        &["serve", "--port", "70000"],
        &["serve", "--threads", "0"],
        &["chat", "--temperature", "3", "hi"],
        &["rm"],
        &["import"],
        &["bench", "local", "--prompt", "many"],
        &["bench", "local", "--prompt", "512,0"],
        &["bench", "local", "--runs", "0"],
        &["bench", "local", "--streams", "0"],
        &["bench", "local", "--threads", "2,0"],
        &["pull", "starter", "--revision", "v1"],
        &["pull", "starter", "--gguf", "Q8_0"],
    ] {
        assert_eq!(linnet(home.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn without_models_every_command_says_how_to_get_one() {
    let home = tempfile::tempdir().unwrap();
    for arguments in
        [&["serve", "--port", "0"][..], &["chat", "hi"], &["bench", "local"], &["chat", "-m", "starter", "hi"]]
    {
        let output = linnet(home.path(), arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("linnet pull starter"), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty());
    }
    let list = linnet(home.path(), &["ls"]);
    assert_eq!((list.status.code(), stdout(&list).as_str()), (Some(0), ""));
    assert!(stderr(&list).contains("linnet pull starter"));
    let json = linnet(home.path(), &["ls", "--json"]);
    assert_eq!(stdout(&json).trim(), "[]");
}

#[test]
fn what_does_not_exist_ends_with_3_and_is_named() {
    let home = tempfile::tempdir().unwrap();
    for arguments in [
        &["rm", "no-such-model"][..],
        &["inspect", "no-such-model"],
        &["import", "/no-such-model.gguf"],
        &["serve", "--model", "no-such-model", "--port", "0"],
        &["chat", "--model", "no-such-model", "hi"],
        &["bench", "local", "no-such-model"],
    ] {
        let output = linnet(home.path(), arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("no-such-model"), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_file_that_is_no_model_is_refused_and_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("noise.gguf");
    std::fs::write(&file, b"this is no model").unwrap();
    let output = linnet(home.path(), &["import", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).starts_with("error: ") && stderr(&output).contains("noise.gguf"), "{}", stderr(&output));
    assert_eq!(stdout(&linnet(home.path(), &["ls", "--json"])).trim(), "[]");
}

#[test]
fn a_broken_model_is_not_taken_for_one_that_was_pulled() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("models/SmolLM2-135M-Instruct");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
    let output = linnet(home.path(), &["pull", "starter"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot be used") && stderr(&output).contains("--force"), "{}", stderr(&output));
    // Nor can it be chatted with; the remedy is the same.
    let output = linnet(home.path(), &["chat", "--model", "starter", "hi"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(linnet(home.path(), &["rm", "starter"]).status.code(), Some(0));
    assert_eq!(stdout(&linnet(home.path(), &["ls", "--json"])).trim(), "[]");
}

#[test]
fn the_starters_word_is_no_name_for_another_model() {
    let home = tempfile::tempdir().unwrap();
    let output = linnet(home.path(), &["import", home.path().to_str().unwrap(), "--name", "starter"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("stands for the starter model"), "{}", stderr(&output));
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_failure() {
    let home = tempfile::tempdir().unwrap();
    let mut child = command(home.path(), &["ls", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

#[test]
fn without_models_a_chat_is_refused_before_the_question_is_read() {
    let home = tempfile::tempdir().unwrap();
    let mut child = command(home.path(), &["chat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may be gone before the question comes.
    drop(child.stdin.take().unwrap().write_all(b"\n"));
    let first = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(first.starts_with("error: "), "{first}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
