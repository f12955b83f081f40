//! What can be asked for on the command line.

use clap::{Parser, Subcommand};

use crate::commands::{bench, chat, import, inspect, list, listen, pull, remove, serve, transcribe};

const EXAMPLES: &str = "\
Examples:
  linnet pull starter              Fetch a small model that runs everywhere
  linnet chat                      Talk to it
  linnet chat \"Name three birds\"   Ask one question
  linnet serve                     Answer programs on http://127.0.0.1:5466/v1 (OpenAI's API)
  linnet transcribe talk.mp3       Write down what is said in a recording
  linnet import model.gguf         Add a model that is already on this machine

Models live in LINNET_HOME (by default in your data folder). Exit codes: 0 done, 1 failed,
2 wrong arguments, 3 the model or file does not exist, 130 interrupted.";

/// Linnet runs language models on this machine: chat with them, or serve them to programs.
#[derive(Debug, Parser)]
#[command(name = "linnet", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve models to programs over OpenAI's HTTP API
    Serve(serve::ServeArguments),
    /// Talk to a model in the terminal, or ask it one question
    Chat(chat::ChatArguments),
    /// Write down what is said in audio files
    Transcribe(transcribe::TranscribeArguments),
    /// Write down what is said into the microphone
    Listen(listen::ListenArguments),
    /// Fetch a model from the Hugging Face hub, or `starter`
    Pull(pull::PullArguments),
    /// Add a model from this machine: an MLX or Hugging Face folder, or a GGUF file
    Import(import::ImportArguments),
    /// List the models
    #[command(alias = "list")]
    Ls(list::ListArguments),
    /// Remove a model from disk
    #[command(alias = "remove")]
    Rm(remove::RemoveArguments),
    /// Show what a model is, or what importing a file would do
    Inspect(inspect::InspectArguments),
    /// Measure how fast a model runs here
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_scripts_rely_on_parses() {
        for line in [
            "linnet serve --port 0 --model x --api-key k --threads 2 --exact --max-concurrent 4 --kv-tokens 9000",
            "linnet serve --backend mlx --kv-bits 4",
            "linnet serve --model a --model b --memory 12GB --idle-unload 0 --max-stall 100 --max-queued 0",
            "linnet serve --cache-memory 4GB --ssd-cache 20GB --ssd-cache-dir d",
            "linnet serve --kv-memory 2GiB --drain 10s --flush-limit 1m",
            "linnet chat --backend cpu hi",
            "linnet bench local m --backend mlx --kv-bits 8",
            "linnet chat hello there --system s --temperature 0 --max-tokens 5",
            "linnet transcribe a.mp3 folder --language de --model whisper-base --beam 5 --words --output-dir d",
            "linnet transcribe a.wav --format srt --format json --translate --prompt p --vocabulary x,y --fresh",
            "linnet listen --language en --model m --device d",
            "linnet pull starter",
            "linnet import f.gguf --name n",
            "linnet ls --json",
            "linnet bench local m --json --threads 2 --prompt 512 --generate 128 --runs 1",
            "linnet bench local --threads 1,2 --streams 1,4",
            "linnet bench cache --mib 64 --runs 3 --block-tokens 32 --directory d --json",
        ] {
            let parsed = Arguments::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
}
