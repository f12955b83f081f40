//! An engine under test: a command that starts its server, or the address of one that runs.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::client::Client;

/// How long a server may take to load its model.
const START_LIMIT: Duration = Duration::from_secs(180);
/// How long a server may take to end when it is asked to.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How often a server is asked whether it is there.
const POLL: Duration = Duration::from_millis(50);

/// An arm as given: `NAME=COMMAND` or `NAME=http://ADDRESS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arm {
    /// What it is called.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) source: Source,
}

/// Where a server comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// It runs.
    Address(String),
    /// A command line, in which `{port}` stands for the port to listen on.
    Command(String),
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, source) = text
            .split_once('=')
            .ok_or("expected NAME=COMMAND or NAME=http://HOST:PORT, with no blanks around the =")?;
        let (name, source) = (name.trim(), source.trim());
        if name.is_empty() || source.is_empty() {
            return Err("both the name and what follows the = must be there".into());
        }
        let source = if source.starts_with("http://") || source.starts_with("https://") {
            Source::Address(source.to_owned())
        } else if source.contains("{port}") {
            Source::Command(source.to_owned())
        } else {
            return Err("the command must say {port} where the port to listen on belongs".into());
        };
        Ok(Self { name: name.to_owned(), source })
    }
}

impl Source {
    /// As it was given.
    pub(crate) fn text(&self) -> &str {
        let (Self::Address(text) | Self::Command(text)) = self;
        text
    }
}

/// A server that was started here; it is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Where it listens, `http://` included.
    pub(crate) base: String,
    peak_memory: Option<u64>,
}

impl Server {
    /// Starts the server; what it writes goes to the end of `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(command: &str, log: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let command = command.replace("{port}", &port.to_string());
        let log = File::options().create(true).append(true).open(log).context("cannot write the server's log")?;
        let errors = log.try_clone().context("cannot write the server's log")?;
        let child = shell(&command)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start `{command}`"))?;
        Ok(Self { child, base: format!("http://127.0.0.1:{port}"), peak_memory: None })
    }

    /// Waits until it answers. Returns the milliseconds that it took.
    ///
    /// # Errors
    /// When it ends or does not answer in time.
    pub(crate) async fn wait_until_ready(&mut self, client: &Client) -> anyhow::Result<f64> {
        let begun = Instant::now();
        while !client.is_ready().await {
            if let Some(status) = self.child.try_wait().context("cannot watch the server")? {
                bail!("the server ended while it started ({status}); its log says why");
            }
            if begun.elapsed() > START_LIMIT {
                bail!("the server did not answer within {} s; its log may say why", START_LIMIT.as_secs());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    }

    /// Asks the server to end and waits for it. Returns the most memory that it had, where that can be found out.
    pub(crate) fn stop(mut self) -> Option<u64> {
        self.end();
        self.peak_memory
    }

    fn end(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.peak_memory = peak_memory(self.child.id());
        ask_to_end(&self.child);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > STOP_LIMIT {
                // It is gone already, or there is nothing more to be done about it.
                drop(self.child.kill());
                drop(self.child.wait());
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    // The shell becomes the server, so that a signal reaches it.
    shell.arg("-c").arg(format!("exec {command}"));
    shell
}

#[cfg(not(unix))]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.arg("/C").arg(command);
    shell
}

#[cfg(unix)]
fn ask_to_end(child: &Child) {
    use rustix::process::{Pid, Signal, kill_process};
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // A process that is gone needs no signal.
        let _ = kill_process(pid, Signal::TERM);
    }
}

#[cfg(not(unix))]
fn ask_to_end(_: &Child) {}

/// A port that nobody listens on. Somebody may take it before the server does; then the server says so.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("there is no free port")?;
    Ok(listener.local_addr().context("there is no free port")?.port())
}

/// The most memory that a process had at once, in bytes. Only Linux tells.
fn peak_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_is_a_name_and_a_command_or_an_address() {
        let arm: Arm = "ours=linnet serve --port {port} --api-key=x".parse().unwrap();
        assert_eq!(arm.name, "ours");
        assert_eq!(arm.source, Source::Command("linnet serve --port {port} --api-key=x".into()));
        let arm: Arm = "peer=http://127.0.0.1:8080/v1".parse().unwrap();
        assert_eq!(arm.source, Source::Address("http://127.0.0.1:8080/v1".into()));
        for (text, reason) in [("ours", "NAME="), ("=x {port}", "both"), ("a=", "both"), ("a=serve --port 1", "{port}")]
        {
            let error = text.parse::<Arm>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_server_is_ended_by_a_signal_and_its_memory_is_known() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let server = Server::start("sleep 60 # {port}", log.path()).unwrap();
        // Until the shell has become the program.
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        assert!(server.stop().is_some_and(|bytes| bytes > 0));
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
