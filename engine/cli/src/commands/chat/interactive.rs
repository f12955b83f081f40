//! A conversation at the terminal.

use super::{answer::Answerer, conversation::Conversation};
use crate::{models, output};
use linnet_library::Store;
use linnet_runtime::LoadOptions;
use rustyline::{DefaultEditor, error::ReadlineError};

const HELP: &str = "\
/clear            begin a new conversation
/system TEXT      begin anew with other instructions
/model NAME       go on with another model
/exit             leave (so do Ctrl-D, and Ctrl-C twice)
A line that ends in \\ goes on in the next.";

/// A line that is a command rather than a question.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Question(&'a str),
    Empty,
    Help,
    Clear,
    System(&'a str),
    Model(&'a str),
    Exit,
    Unknown(&'a str),
}

fn classify(line: &str) -> Line<'_> {
    let line = line.trim();
    let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match command {
        "" => Line::Empty,
        "/help" | "/?" => Line::Help,
        "/clear" | "/new" => Line::Clear,
        "/system" => Line::System(rest.trim()),
        "/model" => Line::Model(rest.trim()),
        "/exit" | "/quit" | "/bye" => Line::Exit,
        // A path such as /etc/hosts, or code, is a question.
        _ if command.starts_with('/') && command[1..].chars().all(|c| c.is_ascii_lowercase()) => Line::Unknown(command),
        _ => Line::Question(line),
    }
}

/// Runs until the user leaves.
pub(super) fn run(
    store: &Store,
    name: &str,
    mut answerer: Answerer,
    mut conversation: Conversation,
    options: &LoadOptions,
) -> anyhow::Result<()> {
    eprintln!("{name} is ready. /help lists the commands.");
    let history = store.models_folder().with_file_name("chat_history");
    let mut editor = DefaultEditor::new()?;
    // A first run has no history yet.
    let _ = editor.load_history(&history);
    let mut was_interrupted = false;
    loop {
        let line = match read(&mut editor) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) if was_interrupted => break,
            Err(ReadlineError::Interrupted) => {
                eprintln!("(Ctrl-C again leaves)");
                was_interrupted = true;
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        was_interrupted = false;
        if !line.trim().is_empty() {
            editor.add_history_entry(line.as_str())?;
            if let Err(error) = editor.save_history(&history) {
                tracing::warn!("{} could not be written: {error}", history.display());
            }
        }
        match classify(&line) {
            Line::Empty => {}
            Line::Help => output::line(HELP)?,
            Line::Exit => break,
            Line::Clear => conversation.clear(None),
            Line::System(text) => conversation.clear(Some(text.to_owned())),
            Line::Model(name) => match switch(store, name, &answerer, options) {
                Ok(other) => answerer = other,
                Err(error) => eprintln!("{error:#}"),
            },
            Line::Unknown(command) => eprintln!("{command} is no command; /help lists them"),
            Line::Question(question) => {
                conversation.ask(question.to_owned());
                match answerer.answer(&conversation) {
                    Ok(answer) => {
                        was_interrupted = answer.is_interrupted;
                        conversation.answered(answer.text);
                    }
                    Err(error) => {
                        conversation.take_back();
                        eprintln!("{error:#}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// A question, which may go over several lines.
fn read(editor: &mut DefaultEditor) -> Result<String, ReadlineError> {
    let mut text = editor.readline("> ")?;
    while text.ends_with('\\') {
        text.pop();
        text.push('\n');
        text.push_str(&editor.readline("  ")?);
    }
    Ok(text)
}

fn switch(store: &Store, name: &str, answerer: &Answerer, options: &LoadOptions) -> anyhow::Result<Answerer> {
    anyhow::ensure!(!name.is_empty(), "/model needs a name; `linnet ls` lists them");
    let entry = models::resolve(store, Some(name))?;
    let options = LoadOptions { name: Some(entry.name.clone()), ..options.clone() };
    answerer.with_model(models::load(&entry, &options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_questions_are_told_apart() {
        assert_eq!(classify("  /system be brief "), Line::System("be brief"));
        assert_eq!(classify("/clera"), Line::Unknown("/clera"));
        assert_eq!(classify("/etc/hosts holds what?"), Line::Question("/etc/hosts holds what?"));
        assert_eq!(classify("a/b"), Line::Question("a/b"));
        assert_eq!(classify(" \t"), Line::Empty);
    }
}
