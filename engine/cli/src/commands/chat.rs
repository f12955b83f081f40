//! `linnet chat`: one question, or a conversation.

mod command;
mod conversation;
mod interrupts;
mod session;

use std::io::{IsTerminal, Read};

use anyhow::{Context, bail};
use linnet_library::{ModelEntry, Store};
use linnet_runtime::EngineOptions;
use tokio::runtime::Runtime;

use crate::exit::Exit;
use crate::models::{self, RunArguments};
use crate::output;
use crate::sampling::SamplingArguments;

use conversation::{Conversation, End};
use interrupts::Interrupts;

/// Arguments of `linnet chat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  linnet chat
  linnet chat \"Name three birds\"
  linnet chat --system \"Answer in French\" \"Name three birds\"
  cat notes.txt | linnet chat \"Sum this up:\" -

In a conversation, Ctrl-C stops the answer and twice leaves; /help lists the commands.")]
pub(crate) struct ChatArguments {
    /// The question; `-` stands for standard input. Without it a conversation begins
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    /// The model [default: the only one installed, else the starter]
    #[arg(long, short)]
    model: Option<String>,
    /// Instructions for the model, before the conversation
    #[arg(long, short)]
    system: Option<String>,
    /// The longest answer, in tokens [default: as much as the context holds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: Option<u32>,
    /// Makes answers repeatable
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Tell the speed after each answer (on standard error)
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    sampling: SamplingArguments,
    #[command(flatten)]
    run: RunArguments,
}

pub(crate) fn run(arguments: &ChatArguments) -> anyhow::Result<Exit> {
    let store = Store::from_environment()?;
    let entry = models::find(&store, arguments.model.as_deref())?;
    let stdin = std::io::stdin();
    let question = question(&arguments.prompt, stdin.is_terminal(), || {
        let mut text = String::new();
        stdin.lock().read_to_string(&mut text).context("cannot read standard input as text")?;
        Ok(text)
    })?;
    // Signals are watched by this runtime; answers come from the engine's own thread.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot wait for answers")?;
    match question {
        Some(question) => ask(&runtime, arguments, &entry, &question),
        None => session::run(&runtime, arguments, &store, &entry),
    }
}

/// Loads a model for chatting.
fn open(arguments: &ChatArguments, entry: &ModelEntry) -> anyhow::Result<Conversation> {
    let engine = EngineOptions { max_concurrent: 1, ..EngineOptions::default() };
    let loaded = models::load(entry, &arguments.run, engine)?;
    let mut conversation = Conversation::new(loaded, &arguments.sampling.overrides())
        .with_context(|| format!("cannot chat with \"{}\"", entry.name))?;
    conversation.max_tokens = arguments.max_tokens.and_then(|limit| usize::try_from(limit).ok());
    conversation.seed = arguments.seed;
    conversation.system.clone_from(&arguments.system);
    Ok(conversation)
}

/// The text to ask, or `None` for a conversation.
fn question(
    words: &[String],
    is_terminal: bool,
    read: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<Option<String>> {
    let text = if words.is_empty() {
        if is_terminal {
            return Ok(None);
        }
        read()?
    } else if words.iter().any(|word| word == "-") {
        let input = read()?;
        let parts = words.iter().map(|word| if word == "-" { input.trim_end() } else { word });
        parts.collect::<Vec<_>>().join("\n")
    } else {
        words.join(" ")
    };
    if text.trim().is_empty() {
        bail!("the prompt is empty; ask something, or start `linnet chat` in a terminal for a conversation");
    }
    Ok(Some(text.trim_end().to_owned()))
}

fn ask(runtime: &Runtime, arguments: &ChatArguments, entry: &ModelEntry, question: &str) -> anyhow::Result<Exit> {
    let mut conversation = open(arguments, entry)?;
    let end = runtime.block_on(async {
        let mut interrupts = Interrupts::watch().context("cannot watch for Ctrl-C")?;
        conversation.ask(question, &mut interrupts, &mut |text| output::piece(text)).await
    })?;
    output::line("")?;
    Ok(match end {
        End::Stopped => Exit::Interrupted,
        End::Finished(usage) => {
            if arguments.stats {
                eprintln!("{}", conversation::stats(&usage));
            }
            Exit::Done
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str], is_terminal: bool, input: &str) -> Option<String> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        question(&words, is_terminal, || Ok(input.to_owned())).unwrap()
    }

    #[test]
    fn a_question_comes_from_arguments_standard_input_or_both() {
        assert_eq!(asked(&[], true, "unread"), None);
        assert_eq!(asked(&["name", "three"], true, "unread").as_deref(), Some("name three"));
        assert_eq!(asked(&["name"], false, "unread").as_deref(), Some("name"));
        assert_eq!(asked(&[], false, "from a pipe\n").as_deref(), Some("from a pipe"));
        assert_eq!(asked(&["Sum up:", "-"], false, "notes\n").as_deref(), Some("Sum up:\nnotes"));
    }

    #[test]
    fn an_empty_question_is_refused() {
        assert!(question(&[], false, || Ok(" \n".to_owned())).is_err());
        assert!(question(&[String::new()], true, || Ok(String::new())).is_err());
    }
}
