//! The commands of a conversation, which begin with a slash.

/// What the commands do, for `/help`.
pub(crate) const HELP: &str = "\
/clear           Forget what was said
/system TEXT     Give the model instructions; without TEXT, take them back
/model NAME      Go on with another model; without NAME, list the models
/help            Show this
/exit            Leave (also Ctrl-D, or Ctrl-C twice)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next.";

/// What a line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// Nothing.
    Empty,
    /// An answer to this.
    Question(String),
    /// The list of commands.
    Help,
    /// An empty conversation.
    Clear,
    /// These instructions, or none.
    System(Option<String>),
    /// This model, or the list of models.
    Model(Option<String>),
    /// The end.
    Exit,
    /// A command that does not exist.
    Unknown(String),
}

/// Reads a line. A slash begins a command only where a single word follows it, so that a path can be asked about.
pub(crate) fn parse(line: &str) -> Line {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let argument = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
    match word {
        "" => Line::Empty,
        "/help" | "/?" => Line::Help,
        "/clear" => Line::Clear,
        "/system" => Line::System(argument),
        "/model" => Line::Model(argument),
        "/exit" | "/quit" | "/bye" => Line::Exit,
        word if word.starts_with('/') && word[1..].chars().all(char::is_alphabetic) => Line::Unknown(word.to_owned()),
        _ => Line::Question(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_questions() {
        for (line, expected) in [
            ("", Line::Empty),
            ("  ", Line::Empty),
            ("/help", Line::Help),
            (" /clear ", Line::Clear),
            ("/system  be kind ", Line::System(Some("be kind".into()))),
            ("/system", Line::System(None)),
            ("/model a/b", Line::Model(Some("a/b".into()))),
            ("/exit", Line::Exit),
            ("/nonsense x", Line::Unknown("/nonsense".into())),
            ("/etc/hosts is what?", Line::Question("/etc/hosts is what?".into())),
            ("what is / in C?", Line::Question("what is / in C?".into())),
            ("two\nlines", Line::Question("two\nlines".into())),
        ] {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }
}
