//! The hub's address, the token, and one request with its redirects.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use reqwest::header::{self, HeaderMap};
use reqwest::{Method, Response, Url};

use crate::PullError;

use super::retry::{Answerer, Failure, RequestSubject, failure_of_status};
use super::token::Token;
use super::verify::BlobHash;

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Redirects followed for one request. The hub itself uses two: a renamed repository, then the content network.
const MOST_REDIRECTS: usize = 8;

/// How patient the client is. The defaults suit a person at a home connection.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Longest time to open a connection.
    pub connect_limit: Duration,
    /// Longest silence of an open connection before it is given up and tried again.
    pub stall_limit: Duration,
    /// Attempts in a row without real progress before the error is told.
    pub attempts: u32,
    /// Pause after the first failed attempt; it doubles from there.
    pub first_pause: Duration,
    /// Longest pause that doubling leads to.
    pub longest_pause: Duration,
    /// Longest pause that a server may ask for; beyond it the request fails with the server's figure.
    pub longest_wait: Duration,
    /// Files downloaded at the same time.
    pub parallel_files: usize,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            connect_limit: Duration::from_secs(15),
            stall_limit: Duration::from_secs(60),
            attempts: 4,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            longest_wait: Duration::from_secs(180),
            parallel_files: 4,
        }
    }
}

/// A client of one hub (or mirror). Cheap to clone; its clones share connections.
#[derive(Clone, Debug)]
pub struct HubClient {
    http: reqwest::Client,
    endpoint: Url,
    token: Option<Token>,
    options: HubOptions,
}

impl HubClient {
    /// The client that the user's environment asks for: `HF_ENDPOINT` (else huggingface.co), and the token from
    /// `HF_TOKEN` or from the file where the hub's own tools keep it.
    ///
    /// # Errors
    /// When the endpoint is no http address, or the token holds characters that no token has.
    pub fn from_environment() -> Result<Self, PullError> {
        Self::from_variables(&|name| std::env::var_os(name), HubOptions::default())
    }

    /// As [`HubClient::from_environment`], with the variables from a function, and options of your own.
    ///
    /// # Errors
    /// As [`HubClient::from_environment`].
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>, options: HubOptions) -> Result<Self, PullError> {
        let endpoint = match variable("HF_ENDPOINT").filter(|value| !value.is_empty()) {
            Some(value) => value.to_string_lossy().into_owned(),
            None => DEFAULT_ENDPOINT.to_owned(),
        };
        let endpoint = parse_endpoint(endpoint.trim())?;
        let token = Token::find(variable)?;
        Ok(Self { http: build_http(&endpoint, &options)?, endpoint, token, options })
    }

    /// The same hub and token with other patience.
    ///
    /// # Errors
    /// When the underlying client cannot be built.
    pub fn with_options(&self, options: HubOptions) -> Result<Self, PullError> {
        Ok(Self { http: build_http(&self.endpoint, &options)?, options, ..self.clone() })
    }

    /// How patient this client is.
    pub fn options(&self) -> &HubOptions {
        &self.options
    }

    /// Host of the hub, with the port where it is not the usual one.
    pub fn host(&self) -> String {
        host_of(&self.endpoint)
    }

    /// An address below the endpoint; each part is escaped, a `/` inside a part too.
    pub(crate) fn address<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        // An http address can always take path segments; parse_endpoint let nothing else in.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    /// Sends a request, follows redirects, and hands back the first real answer. The token goes only to the
    /// endpoint's own origin, looked at anew on each hop.
    pub(crate) async fn send(
        &self,
        method: Method,
        mut url: Url,
        range_from: Option<u64>,
        subject: &RequestSubject<'_>,
    ) -> Result<Answer, Failure> {
        let mut stated = StatedFacts::default();
        for _ in 0..=MOST_REDIRECTS {
            let host = host_of(&url);
            let is_hub = same_origin(&url, &self.endpoint);
            let token = self.token.as_ref().filter(|_| is_hub);
            let sendable = token.filter(|_| is_private_channel(&url));
            // No compression: ranges and sizes count the file's own bytes.
            let mut request =
                self.http.request(method.clone(), url.clone()).header(header::ACCEPT_ENCODING, "identity");
            if let Some(start) = range_from {
                request = request.header(header::RANGE, format!("bytes={start}-"));
            }
            if let Some(token) = sendable {
                request = request.header(header::AUTHORIZATION, token.header());
            }
            let response = match tokio::time::timeout(self.options.stall_limit, request.send()).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => {
                    return Err(Failure::passing(PullError::Unreachable { host, reason: reason_of(error) }));
                }
                Err(_) => {
                    let reason = format!("no answer within {} s", self.options.stall_limit.as_secs_f32());
                    return Err(Failure::passing(PullError::Unreachable { host, reason }));
                }
            };
            if is_hub {
                stated.absorb(response.headers());
            }
            let status = response.status();
            if status.is_success() {
                return Ok(Answer { response, host, stated });
            }
            if !status.is_redirection() {
                let page = self.address(subject.id.split('/')).to_string();
                let (token_sent, token_withheld) = (sendable.is_some(), token.is_some() && sendable.is_none());
                let answerer = Answerer { host, is_hub, page, token_sent, token_withheld };
                return Err(failure_of_status(status, response.headers(), subject, answerer, SystemTime::now()));
            }
            let next = match next_address(&url, response.headers()) {
                Ok(next) => next,
                Err(reason) => {
                    let reason = format!("status {} {reason}", status.as_u16());
                    let what = subject.describe();
                    return Err(Failure::Fatal(PullError::UnexpectedAnswer { host, what, reason }));
                }
            };
            // The content network's addresses are signed for GET alone, and the hub has said all it knows.
            if method == Method::HEAD && stated.size.is_some() && !same_origin(&next, &self.endpoint) {
                return Ok(Answer { response, host, stated });
            }
            url = next;
        }
        let reason = format!("more than {MOST_REDIRECTS} redirects");
        Err(Failure::Fatal(PullError::UnexpectedAnswer { host: host_of(&url), what: subject.describe(), reason }))
    }
}

/// A successful answer and what was learnt on the way to it.
pub(crate) struct Answer {
    pub(crate) response: Response,
    /// Who gave it: the hub, or the content network.
    pub(crate) host: String,
    /// What the hub itself stated.
    pub(crate) stated: StatedFacts,
}

/// What the hub states about a file in its own answers, also in those that redirect elsewhere.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct StatedFacts {
    /// From `X-Linked-Etag`, or from the `ETag` of an answer that carries `X-Repo-Commit`.
    pub(crate) hash: Option<BlobHash>,
    /// From `X-Linked-Size`.
    pub(crate) size: Option<u64>,
}

impl StatedFacts {
    fn absorb(&mut self, headers: &HeaderMap) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(size) = text("x-linked-size").and_then(|size| size.parse().ok()) {
            self.size = Some(size);
        }
        let linked = text("x-linked-etag");
        // Any server has an ETag; only beside the hub's own header does it have the hub's meaning.
        let plain = text("etag").filter(|_| headers.contains_key("x-repo-commit"));
        if let Some(etag) = linked.or(plain).map(bare_etag) {
            self.hash = BlobHash::parse_sha256(etag).or_else(|| BlobHash::parse_git_sha1(etag)).or(self.hash);
        }
    }
}

fn bare_etag(etag: &str) -> &str {
    etag.trim().trim_start_matches("W/").trim_matches('"')
}

fn parse_endpoint(text: &str) -> Result<Url, PullError> {
    let refused = |value: &str, reason: String| PullError::BadEndpoint { value: value.to_owned(), reason };
    let mut url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => {
            // Text that does not parse may still hold a password before its @.
            let shown = text.rsplit('@').next().unwrap_or_default();
            return Err(refused(shown, error.to_string()));
        }
    };
    let shown = host_of(&url);
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused(&shown, format!("its scheme is {}, not http or https", url.scheme())));
    }
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

fn build_http(endpoint: &Url, options: &HubOptions) -> Result<reqwest::Client, PullError> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("linnet/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(options.connect_limit);
    if is_loopback(endpoint) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| PullError::ClientSetup { reason: reason_of(error) })
}

/// The address that a redirect points to, or what is wrong with it.
fn next_address(from: &Url, headers: &HeaderMap) -> Result<Url, String> {
    let location = headers.get(header::LOCATION).ok_or("without a Location")?;
    let location = std::str::from_utf8(location.as_bytes()).map_err(|_| "with a Location that is not text")?;
    let next = from.join(location).map_err(|error| format!("with a Location that is no address ({error})"))?;
    match (from.scheme(), next.scheme()) {
        ("https", "http") => Err(format!("leads from an encrypted to a plain address at {}", host_of(&next))),
        (_, "http" | "https") => Ok(next),
        (_, other) => Err(format!("leads to an address of the kind {other}:")),
    }
}

fn same_origin(one: &Url, other: &Url) -> bool {
    one.origin() == other.origin()
}

/// Whether nobody between here and there can read along.
fn is_private_channel(url: &Url) -> bool {
    url.scheme() == "https" || is_loopback(url)
}

fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Host and unusual port: all of an address that may be shown, since content networks sign their query strings.
pub(crate) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or("an address without a host");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// An error's whole chain of reasons on one line, without the address (it may hold a signature).
pub(crate) fn reason_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(variables: &[(&str, &str)]) -> Result<HubClient, PullError> {
        let lookup =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        HubClient::from_variables(&lookup, HubOptions::default())
    }

    #[test]
    fn the_endpoint_defaults_and_may_have_a_path() {
        assert_eq!(client(&[]).unwrap().host(), "huggingface.co");
        let mirror = client(&[("HF_ENDPOINT", "https://mirror.example/hf/")]).unwrap();
        let address = mirror.address(["a", "b", "resolve", "refs/pr/1", "gewicht ü.json"]);
        assert_eq!(address.as_str(), "https://mirror.example/hf/a/b/resolve/refs%2Fpr%2F1/gewicht%20%C3%BC.json");
    }

    #[test]
    fn an_unusable_endpoint_is_refused_without_its_password() {
        for endpoint in ["ftp://user:hunter2@mirror.example", "user:hunter2@mirror.example:x"] {
            let error = client(&[("HF_ENDPOINT", endpoint)]).unwrap_err();
            assert!(matches!(error, PullError::BadEndpoint { .. }), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_redirect_may_not_drop_encryption_nor_leave_http() {
        let from = Url::parse("https://hub.example/a/b").unwrap();
        let next = |location: &str| {
            let headers = HeaderMap::from_iter([(header::LOCATION, location.parse().unwrap())]);
            next_address(&from, &headers).map(|url| url.to_string())
        };
        assert_eq!(next("/c?x=1").unwrap(), "https://hub.example/c?x=1");
        assert_eq!(next("https://cdn.example/c").unwrap(), "https://cdn.example/c");
        assert!(next("http://hub.example/c").unwrap_err().contains("encrypted"));
        assert!(next("file:///etc/passwd").is_err());
        assert!(next_address(&from, &HeaderMap::new()).is_err());
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let url = |text: &str| Url::parse(text).unwrap();
        assert!(same_origin(&url("https://a.example/x"), &url("https://a.example:443/y")));
        for other in ["http://a.example", "https://a.example:444", "https://b.example", "https://a.example.evil"] {
            assert!(!same_origin(&url("https://a.example"), &url(other)), "{other}");
        }
        assert!(is_private_channel(&url("http://127.0.0.1:80")) && is_private_channel(&url("http://[::1]:80")));
        assert!(!is_private_channel(&url("http://mirror.example")));
    }

    #[test]
    fn the_token_is_not_in_debug_output() {
        let client = client(&[("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(!format!("{client:?}").contains("hf_secret"));
    }
}
