//! A conversation in the terminal: a line editor with history, and slash commands.

use std::io;
use std::path::PathBuf;

use anyhow::Context;
use linnet_library::{ModelEntry, Store};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};
use tokio::runtime::Runtime;

use super::command::{self, Line};
use super::conversation::{Conversation, End, stats};
use super::interrupts::Interrupts;
use super::{ChatArguments, open};
use crate::exit::Exit;
use crate::models;
use crate::output;

/// Lines kept from conversation to conversation.
const HISTORY_LENGTH: usize = 1000;

/// A line that ends in a backslash goes on in the next.
struct Continuation;

impl Completer for Continuation {
    type Candidate = String;
}

impl Hinter for Continuation {
    type Hint = String;
}

impl Highlighter for Continuation {}

impl Helper for Continuation {}

impl Validator for Continuation {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_open = context.input().ends_with('\\');
        Ok(if is_open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

/// The line editor with its history file.
struct Prompt {
    editor: Editor<Continuation, FileHistory>,
    history: PathBuf,
}

impl Prompt {
    fn new(history: PathBuf) -> anyhow::Result<Self> {
        let config = Config::builder().max_history_size(HISTORY_LENGTH).context("the history")?.build();
        let mut editor = Editor::with_config(config).context("cannot use this terminal")?;
        editor.set_helper(Some(Continuation));
        // There is none before the first conversation, and a broken one is no reason not to talk.
        let _ = editor.load_history(&history);
        Ok(Self { editor, history })
    }

    fn read(&mut self) -> rustyline::Result<String> {
        let line = self.editor.readline("> ")?;
        let line = line.replace("\\\n", "\n");
        if !line.trim().is_empty() {
            self.editor.add_history_entry(&line)?;
            if let Err(error) = self.editor.append_history(&self.history) {
                eprintln!("note: the history cannot be saved in {}: {error}", self.history.display());
            }
        }
        Ok(line)
    }
}

/// Talks until the user leaves.
pub(crate) fn run(
    runtime: &Runtime,
    arguments: &ChatArguments,
    store: &Store,
    entry: &ModelEntry,
) -> anyhow::Result<Exit> {
    eprintln!("loading {} ...", entry.name);
    let mut conversation = open(arguments, entry)?;
    eprintln!("{} is ready. Ask something; /help lists the commands, /exit leaves.", entry.name);
    let mut prompt = Prompt::new(store.home().join("chat_history"))?;
    let mut interrupts = {
        let _within = runtime.enter();
        // Behind the line editor, which takes the signal for itself when it is made.
        Interrupts::watch().context("cannot watch for Ctrl-C")?
    };
    let mut was_interrupted = false;
    loop {
        // Pressed again before the prompt stood there to read it.
        if runtime.block_on(interrupts.came()) && was_interrupted {
            return Ok(Exit::Done);
        }
        let line = match prompt.read() {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) if was_interrupted => return Ok(Exit::Done),
            Err(ReadlineError::Interrupted) => {
                was_interrupted = true;
                eprintln!("(Ctrl-C again or /exit leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(Exit::Done),
            // One that was for an answer, seen late.
            Err(ReadlineError::Signal(_)) => continue,
            // Bytes that are no text come from a paste or a terminal of another encoding.
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                eprintln!("(that was not UTF-8 text; say it in other words)");
                continue;
            }
            Err(error) => return Err(error).context("cannot read from this terminal"),
        };
        was_interrupted = false;
        match command::parse(&line) {
            Line::Empty => {}
            Line::Exit => return Ok(Exit::Done),
            Line::Help => output::line(command::HELP)?,
            Line::Clear => {
                conversation.clear();
                eprintln!("(a new conversation)");
            }
            Line::System(text) => {
                eprintln!("({})", if text.is_some() { "the instructions are set" } else { "no instructions" });
                conversation.system = text;
            }
            Line::Model(None) => list_models(store)?,
            Line::Model(Some(name)) => {
                if let Some(other) = tell(change_model(arguments, store, &name, &conversation)) {
                    conversation = other;
                }
            }
            Line::Unknown(word) => eprintln!("there is no {word}; /help lists the commands"),
            Line::Question(question) => {
                let end =
                    runtime.block_on(conversation.ask(&question, &mut interrupts, &mut |text| output::piece(text)));
                output::line("")?;
                match tell(end) {
                    Some(End::Stopped) => {
                        was_interrupted = true;
                        eprintln!("(stopped; Ctrl-C again leaves)");
                    }
                    Some(End::Finished(usage)) if arguments.stats => eprintln!("{}", stats(&usage)),
                    _ => {}
                }
            }
        }
    }
}

/// Shows an error and goes on: nothing that fails in a conversation ends it.
fn tell<T>(result: anyhow::Result<T>) -> Option<T> {
    result.inspect_err(|error| eprintln!("error: {error:#}")).ok()
}

fn list_models(store: &Store) -> anyhow::Result<()> {
    for entry in store.list()?.iter().filter(|entry| entry.problem.is_none()) {
        output::line(&entry.name)?;
    }
    Ok(())
}

/// Loads another model; what was said is forgotten, because it was said by someone else.
fn change_model(
    arguments: &ChatArguments,
    store: &Store,
    name: &str,
    current: &Conversation,
) -> anyhow::Result<Conversation> {
    let entry = models::find(store, Some(name))?;
    eprintln!("loading {} ...", entry.name);
    let mut conversation = open(arguments, &entry)?;
    conversation.system.clone_from(&current.system);
    eprintln!("{} is ready (a new conversation)", entry.name);
    Ok(conversation)
}
