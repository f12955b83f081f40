//! Decisions about failed requests: what a status means, whether to try again, and how long to wait. All pure.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::HeaderMap;

use crate::PullError;

use super::client::HubOptions;

/// Received bytes after which a run of failed attempts counts as over: a link that breaks now and then but moves the
/// file forward may go on breaking.
const PROGRESS_THAT_COUNTS: u64 = 1 << 20;

/// Longest server text that is passed on, in characters.
const LONGEST_MESSAGE: usize = 300;

/// A failed attempt.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No use in trying again.
    Fatal(PullError),
    /// May work next time.
    Passing {
        /// What to say if it does not.
        error: PullError,
        /// How long the server asked us to wait.
        after: Option<Duration>,
    },
}

impl Failure {
    pub(crate) fn passing(error: PullError) -> Self {
        Self::Passing { error, after: None }
    }
}

/// What a request was about, for the texts of errors.
pub(crate) struct RequestSubject<'a> {
    /// The repository.
    pub(crate) id: &'a str,
    /// The revision.
    pub(crate) revision: &'a str,
    /// The file, if one was asked for.
    pub(crate) file: Option<&'a str>,
}

impl RequestSubject<'_> {
    pub(crate) fn describe(&self) -> String {
        match self.file {
            Some(file) => format!("{file} of {}", self.id),
            None => format!("the listing of {}", self.id),
        }
    }
}

/// Who answered.
pub(crate) struct Answerer {
    /// Its host (and port, where it is not the usual one).
    pub(crate) host: String,
    /// Whether it is the hub itself, not a content network it sent us to.
    pub(crate) is_hub: bool,
    /// The repository's page on the hub.
    pub(crate) page: String,
    /// Whether our token went with the request.
    pub(crate) token_sent: bool,
    /// Whether we have a token that was held back, since the address is not encrypted.
    pub(crate) token_withheld: bool,
}

/// What a status that is neither success nor redirect means.
pub(crate) fn failure_of_status(
    status: StatusCode,
    headers: &HeaderMap,
    subject: &RequestSubject<'_>,
    answerer: Answerer,
    now: SystemTime,
) -> Failure {
    let Answerer { host, is_hub, page, token_sent, token_withheld } = answerer;
    let code = headers.get("x-error-code").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let message = headers.get("x-error-message").and_then(|value| clean_message(value.as_bytes()));
    let id = subject.id.to_owned();
    let server =
        |message| PullError::Server { host: host.clone(), status: status.as_u16(), what: subject.describe(), message };
    match status.as_u16() {
        429 => Failure::Passing {
            error: PullError::RateLimited { host, wait: requested_wait(headers, now) },
            after: requested_wait(headers, now),
        },
        408 | 425 | 500..=599 => Failure::Passing { error: server(message), after: requested_wait(headers, now) },
        // A signed address of the content network has run out, or its edge does not have the file yet: the hub
        // gives a new address next time.
        401 | 403 | 404 | 410 if !is_hub => Failure::passing(server(message)),
        401 | 403 if code == "GatedRepo" => Failure::Fatal(PullError::Gated { id, page, token_sent, message }),
        401 if token_withheld => Failure::Fatal(PullError::TokenWithheld { host }),
        // The hub answers 401, not 404, to one who asks without a token for what is not public.
        401 if !token_sent => Failure::Fatal(PullError::RepositoryNotFound { id, host, token_sent }),
        401 => Failure::Fatal(PullError::TokenRefused { host, message }),
        403 => Failure::Fatal(PullError::Forbidden { id, host, message }),
        404 if code == "RevisionNotFound" => {
            Failure::Fatal(PullError::RevisionNotFound { id, revision: subject.revision.to_owned() })
        }
        404 => Failure::Fatal(match subject.file {
            Some(file) => PullError::FileNotFound { id, file: file.to_owned(), host },
            None => PullError::RepositoryNotFound { id, host, token_sent },
        }),
        _ => Failure::Fatal(server(message)),
    }
}

/// The pause a server asks for: `Retry-After` in seconds or as a date, or the hub's own `RateLimit` header, whose
/// `t=` is the number of seconds until the window ends.
fn requested_wait(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(value) = text("retry-after") {
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        if let Ok(date) = httpdate::parse_http_date(value) {
            return Some(date.duration_since(now).unwrap_or_default());
        }
    }
    let window = text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t="))?;
    window.parse().ok().map(Duration::from_secs)
}

/// A server's text as one short line without control characters; `None` if nothing is left.
pub(crate) fn clean_message(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|character| !character.is_control()).take(LONGEST_MESSAGE).collect();
    (!line.is_empty()).then_some(line)
}

/// Counts failed attempts at one thing.
pub(crate) struct RetryTally {
    attempts: u32,
    first_pause: Duration,
    longest_pause: Duration,
    longest_wait: Duration,
    failures: u32,
    bytes_at_last_failure: u64,
}

impl RetryTally {
    /// A tally that begins with `bytes` on this machine.
    pub(crate) fn new(options: &HubOptions, bytes: u64) -> Self {
        Self {
            attempts: options.attempts.max(1),
            first_pause: options.first_pause,
            longest_pause: options.longest_pause,
            longest_wait: options.longest_wait,
            failures: 0,
            bytes_at_last_failure: bytes,
        }
    }

    /// How many attempts have failed in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Decides what follows a failure that left `bytes` on this machine: the pause before the next attempt and the
    /// failure's text, or the error to end with.
    pub(crate) fn after(&mut self, failure: Failure, bytes: u64) -> Result<(Duration, String), PullError> {
        let (error, requested) = match failure {
            Failure::Fatal(error) => return Err(error),
            Failure::Passing { error, after } => (error, after),
        };
        if bytes.saturating_sub(self.bytes_at_last_failure) >= PROGRESS_THAT_COUNTS {
            self.failures = 0;
        }
        self.bytes_at_last_failure = bytes;
        self.failures += 1;
        if self.failures >= self.attempts || requested.is_some_and(|wait| wait > self.longest_wait) {
            return Err(with_attempts(error, self.failures));
        }
        let doubled = self.first_pause.saturating_mul(1 << (self.failures - 1).min(16)).min(self.longest_pause);
        Ok((requested.map_or(doubled, |wait| wait.max(doubled)), error.to_string()))
    }
}

fn with_attempts(mut error: PullError, failures: u32) -> PullError {
    if let PullError::Stalled { attempts, .. } | PullError::Truncated { attempts, .. } = &mut error {
        *attempts = failures;
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn failure(status: u16, pairs: &[(&'static str, &str)], is_hub: bool, token_sent: bool) -> Failure {
        let subject = RequestSubject { id: "a/b", revision: "main", file: None };
        let (host, page) = ("hub.example".to_owned(), "https://hub.example/a/b".to_owned());
        let answerer = Answerer { host, is_hub, page, token_sent, token_withheld: false };
        let status = StatusCode::from_u16(status).unwrap();
        failure_of_status(status, &headers(pairs), &subject, answerer, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn each_refusal_of_the_hub_has_its_own_meaning() {
        let gated = failure(403, &[("x-error-code", "GatedRepo"), ("x-error-message", "ask  first\t")], true, true);
        let Failure::Fatal(PullError::Gated { message, .. }) = gated else { panic!("{gated:?}") };
        assert_eq!(message.as_deref(), Some("ask first"));
        let hidden = failure(401, &[("x-error-code", "RepoNotFound")], true, false);
        assert!(matches!(hidden, Failure::Fatal(PullError::RepositoryNotFound { token_sent: false, .. })));
        let stale = failure(401, &[], true, true);
        assert!(matches!(stale, Failure::Fatal(PullError::TokenRefused { .. })));
        let revision = failure(404, &[("x-error-code", "RevisionNotFound")], true, false);
        assert!(matches!(revision, Failure::Fatal(PullError::RevisionNotFound { .. })));
        let teapot = failure(418, &[], true, false);
        assert!(matches!(teapot, Failure::Fatal(PullError::Server { status: 418, .. })));
    }

    #[test]
    fn a_token_held_back_on_a_plain_connection_is_told() {
        let subject = RequestSubject { id: "a/b", revision: "main", file: None };
        let (host, page) = ("mirror.example".to_owned(), "http://mirror.example/a/b".to_owned());
        let answerer = Answerer { host, is_hub: true, page, token_sent: false, token_withheld: true };
        let now = SystemTime::UNIX_EPOCH;
        let failure = failure_of_status(StatusCode::UNAUTHORIZED, &HeaderMap::new(), &subject, answerer, now);
        assert!(matches!(failure, Failure::Fatal(PullError::TokenWithheld { .. })), "{failure:?}");
    }

    #[test]
    fn an_expired_address_of_the_content_network_is_asked_for_again() {
        assert!(matches!(failure(403, &[], false, false), Failure::Passing { .. }));
        assert!(matches!(failure(403, &[], true, false), Failure::Fatal(_)));
    }

    #[test]
    fn the_wait_is_read_in_seconds_as_a_date_and_from_the_hubs_header() {
        let wait = |pairs: &[(&'static str, &str)]| requested_wait(&headers(pairs), SystemTime::UNIX_EPOCH);
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[("retry-after", "Thu, 01 Jan 1970 00:01:00 GMT")]), Some(Duration::from_secs(60)));
        assert_eq!(wait(&[("ratelimit", "\"api\";r=0;t=55")]), Some(Duration::from_secs(55)));
        assert_eq!(wait(&[("retry-after", "soon")]), None);
    }

    #[test]
    fn pauses_double_and_end_while_progress_begins_anew() {
        let options = HubOptions { attempts: 4, first_pause: Duration::from_secs(1), ..HubOptions::default() };
        let mut tally = RetryTally::new(&options, 0);
        let broken = || {
            Failure::passing(PullError::Truncated {
                file: "f".into(),
                host: "h".into(),
                received: 0,
                total: 9,
                attempts: 0,
                reason: "gone".into(),
            })
        };
        let pause = |result: Result<(Duration, String), PullError>| result.unwrap().0.as_secs();
        assert_eq!(pause(tally.after(broken(), 0)), 1);
        assert_eq!(pause(tally.after(broken(), 10)), 2);
        assert_eq!(pause(tally.after(broken(), 20)), 4);
        assert_eq!(pause(tally.after(broken(), 20 + PROGRESS_THAT_COUNTS)), 1);
        for _ in 0..2 {
            tally.after(broken(), 20 + PROGRESS_THAT_COUNTS).unwrap();
        }
        let end = tally.after(broken(), 20 + PROGRESS_THAT_COUNTS);
        assert!(matches!(end, Err(PullError::Truncated { attempts: 4, .. })), "{end:?}");
    }

    #[test]
    fn a_wait_of_an_hour_is_told_and_not_waited_for() {
        let mut tally = RetryTally::new(&HubOptions::default(), 0);
        let limited = failure(429, &[("retry-after", "3600")], true, false);
        let error = tally.after(limited, 0).unwrap_err().to_string();
        assert!(error.contains("3600 s"), "{error}");
    }
}
