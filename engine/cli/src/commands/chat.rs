//! `linnet chat`

mod answer;
mod conversation;
mod interactive;

use crate::models::{self, ComputeArguments};
use answer::Answerer;
use clap::Args;
use conversation::Conversation;
use linnet_api::SamplingOverrides;
use linnet_library::Store;
use linnet_runtime::EngineOptions;
use std::io::{IsTerminal, Read};

/// Chat with a model: one question, or a conversation
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  linnet chat\n  linnet chat \"What is the capital of France?\"\n  \
    git diff | linnet chat \"Write a commit message for this change:\"\n\n\
    In a conversation, /help lists the commands; Ctrl-C stops an answer, twice leaves.")]
pub(crate) struct Arguments {
    /// The question; without one, a conversation begins. Text piped in is added to it
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    /// The model to talk to [default: the only one installed, or the starter]
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,
    /// Instructions that stand above the conversation
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// 0 always takes the most probable word [default: the model's own, or 0.7]
    #[arg(short, long, value_name = "T")]
    temperature: Option<f32>,
    /// Keep the smallest set of words whose probabilities reach this sum
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Keep this many of the most probable words
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Divide the chance of words said lately; 1 is off
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Make the answer repeatable
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The most tokens of an answer
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    #[command(flatten)]
    compute: ComputeArguments,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let store = Store::from_environment()?;
    let prompt = prompt(arguments)?;
    let entry = models::resolve(&store, arguments.model.as_deref())?;
    let engine = EngineOptions { max_concurrent: 1, ..EngineOptions::default() };
    let options = arguments.compute.load_options(&entry.name, engine);
    let model = models::load(&entry, &options)?;
    let chosen = SamplingOverrides {
        temperature: arguments.temperature,
        top_p: arguments.top_p,
        top_k: arguments.top_k,
        repetition_penalty: arguments.repetition_penalty,
        ..SamplingOverrides::default()
    };
    let sampling = chosen.or(&SamplingOverrides::from(&model.defaults)).resolve(Vec::new(), arguments.seed);
    let answerer = Answerer::new(model, sampling, arguments.max_tokens)?;
    let mut conversation = Conversation::new(arguments.system.clone());
    match prompt {
        Some(prompt) => {
            conversation.ask(prompt);
            answerer.answer(&conversation).map(|_| ())
        }
        None => interactive::run(&store, &entry.name, answerer, conversation, &options),
    }
}

/// The question on the command line and what was piped in; `None` for a conversation.
fn prompt(arguments: &Arguments) -> anyhow::Result<Option<String>> {
    let mut prompt = arguments.prompt.join(" ");
    if !std::io::stdin().is_terminal() {
        let mut piped = String::new();
        std::io::stdin().read_to_string(&mut piped)?;
        let piped = piped.trim_end();
        if !prompt.is_empty() && !piped.is_empty() {
            prompt.push_str("\n\n");
        }
        prompt.push_str(piped);
        if prompt.trim().is_empty() {
            anyhow::bail!("there is no question: standard input is empty; give one as an argument or pipe one in");
        }
    }
    Ok((!prompt.trim().is_empty()).then_some(prompt))
}
