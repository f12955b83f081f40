//! A hub on loopback that speaks the real one's protocol, with a content network on another port, and that can be
//! told to fail in every way a network fails.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri, header};
use axum::routing::any;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use sha1::{Digest, Sha1};
use sha2::Sha256;
use tokio::task::JoinHandle;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const REPOSITORY: &str = "maker/tiny-model";
pub(crate) const SIGNATURE: &str = "a-signature-nobody-may-see";

/// A fault that the next request for a file's content meets.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// An answer with this status and these headers instead of content.
    Status(u16, Vec<(&'static str, String)>),
    /// The whole file with status 200, whatever range was asked for.
    IgnoreRange,
    /// A part (206) that begins one byte after the one asked for.
    ShiftedRange,
    /// The connection breaks after so many bytes of the body.
    CloseAfter(usize),
    /// Nothing more comes after so many bytes of the body.
    StallAfter(usize),
    /// The body comes in pieces of so many bytes, with a pause after each.
    Drip(usize, Duration),
    /// The last byte is another one.
    Corrupt,
    /// The file is so many bytes shorter, and says so.
    Shorter(usize),
}

/// A request that a server saw.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) by_hub: bool,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
}

#[derive(Clone)]
pub(crate) struct ServedFile {
    pub(crate) name: String,
    pub(crate) content: Bytes,
    pub(crate) large: bool,
}

/// Status, headers and body.
type ListingAnswer = (u16, Vec<(&'static str, String)>, String);

#[derive(Default)]
struct Shared {
    files: Vec<ServedFile>,
    faults: HashMap<String, VecDeque<Fault>>,
    /// A fault that stays for good, when the queue is empty.
    standing: HashMap<String, Fault>,
    listing_answers: VecDeque<ListingAnswer>,
    listing_override: Option<Value>,
    seen: Vec<Seen>,
    network: String,
}

type SharedState = Arc<Mutex<Shared>>;

/// The two servers; they end when this is dropped.
pub(crate) struct FakeHub {
    pub(crate) endpoint: String,
    state: SharedState,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl FakeHub {
    pub(crate) async fn start(files: Vec<ServedFile>) -> Self {
        let state: SharedState = Arc::new(Mutex::new(Shared { files, ..Shared::default() }));
        let (hub, hub_task) =
            serve(Router::new().route("/{*path}", any(answer_as_hub)).with_state(state.clone())).await;
        let (network, network_task) =
            serve(Router::new().route("/{*path}", any(answer_as_network)).with_state(state.clone())).await;
        state.lock().unwrap().network = network;
        Self { endpoint: hub, state, tasks: vec![hub_task, network_task] }
    }

    pub(crate) fn fail_next(&self, name: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state.lock().unwrap().faults.entry(name.to_owned()).or_default().extend(faults);
    }

    pub(crate) fn fail_always(&self, name: &str, fault: Fault) {
        self.state.lock().unwrap().standing.insert(name.to_owned(), fault);
    }

    pub(crate) fn heal(&self) {
        let mut shared = self.state.lock().unwrap();
        shared.standing.clear();
        shared.faults.clear();
    }

    /// The next request for a listing gets this answer.
    pub(crate) fn answer_listing(&self, status: u16, headers: Vec<(&'static str, String)>, body: &str) {
        self.state.lock().unwrap().listing_answers.push_back((status, headers, body.to_owned()));
    }

    /// Every listing is this one.
    pub(crate) fn list(&self, listing: Value) {
        self.state.lock().unwrap().listing_override = Some(listing);
    }

    pub(crate) fn listing(&self) -> Value {
        listing_of(&self.state.lock().unwrap().files)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// The `Range` of every request for a file's content, in order.
    pub(crate) fn ranges(&self, name: &str) -> Vec<Option<String>> {
        let content = |seen: &Seen| seen.method == Method::GET && content_path(&seen.path) == Some(name);
        self.seen().into_iter().filter(content).map(|seen| seen.range).collect()
    }

    pub(crate) fn forget(&self) {
        self.state.lock().unwrap().seen.clear();
    }
}

async fn serve(router: Router) -> (String, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        axum::serve(listener, router).await.unwrap();
    });
    (address, task)
}

pub(crate) fn git_sha1(content: &[u8]) -> String {
    let mut hasher = Sha1::new_with_prefix(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex(&hasher.finalize())
}

pub(crate) fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listing_of(files: &[ServedFile]) -> Value {
    let siblings: Vec<Value> = files
        .iter()
        .map(|file| {
            let size = file.content.len();
            if file.large {
                // The blob of a large file is its pointer.
                json!({"rfilename": file.name, "size": size, "blobId": git_sha1(b"pointer"),
                    "lfs": {"sha256": sha256(&file.content), "size": size, "pointerSize": 134}})
            } else {
                json!({"rfilename": file.name, "size": size, "blobId": git_sha1(&file.content)})
            }
        })
        .collect();
    json!({"_id": "1", "id": REPOSITORY, "sha": COMMIT, "private": false, "gated": false, "siblings": siblings})
}

/// The file that a path asks content of: below `content/` on the network, below `resolve-cache/` on the hub.
fn content_path(path: &str) -> Option<&str> {
    path.strip_prefix("content/").or_else(|| path.split_once(&format!("resolve-cache/{COMMIT}/")).map(|(_, name)| name))
}

fn note(state: &SharedState, by_hub: bool, method: &Method, path: &str, headers: &HeaderMap) {
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (range, authorization) = (text(header::RANGE), text(header::AUTHORIZATION));
    let seen = Seen { by_hub, method: method.clone(), path: path.to_owned(), range, authorization };
    state.lock().unwrap().seen.push(seen);
}

async fn answer_as_hub(
    State(state): State<SharedState>,
    Path(path): Path<String>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response<Body> {
    note(&state, true, &method, &path, &headers);
    if path.starts_with("api/models/") {
        assert_eq!(uri.query(), Some("blobs=true"));
        return answer_listing(&state);
    }
    if content_path(&path).is_some() {
        return answer_content(&state, &path, &headers);
    }
    let Some((_, name)) = path.split_once(&format!("/resolve/{COMMIT}/")) else {
        return plain(404, &[("x-error-code", "EntryNotFound".to_owned())], "");
    };
    let shared = state.lock().unwrap();
    let Some(file) = shared.files.iter().find(|file| file.name == name) else {
        return plain(404, &[("x-error-code", "EntryNotFound".to_owned())], "");
    };
    let escaped = uri.path().split_once(&format!("/resolve/{COMMIT}/")).unwrap().1;
    if file.large {
        let location = format!("{}/content/{escaped}?X-Signature={SIGNATURE}", shared.network);
        let facts = [
            ("location", location),
            ("x-linked-etag", format!("\"{}\"", sha256(&file.content))),
            ("x-linked-size", file.content.len().to_string()),
            ("x-repo-commit", COMMIT.to_owned()),
            ("x-xet-hash", "f".repeat(64)),
        ];
        plain(302, &facts, "Found")
    } else {
        let location = format!("/api/resolve-cache/{COMMIT}/{escaped}");
        let facts = [
            ("location", location),
            ("etag", format!("\"{}\"", git_sha1(&file.content))),
            ("x-repo-commit", COMMIT.to_owned()),
        ];
        plain(307, &facts, "Temporary Redirect")
    }
}

async fn answer_as_network(
    State(state): State<SharedState>,
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response<Body> {
    note(&state, false, &method, &path, &headers);
    answer_content(&state, &path, &headers)
}

fn answer_listing(state: &SharedState) -> Response<Body> {
    let mut shared = state.lock().unwrap();
    if let Some((status, headers, body)) = shared.listing_answers.pop_front() {
        return plain(status, &headers, &body);
    }
    let listing = shared.listing_override.clone().unwrap_or_else(|| listing_of(&shared.files));
    plain(200, &[("content-type", "application/json".to_owned())], &listing.to_string())
}

fn plain(status: u16, headers: &[(&'static str, String)], body: &str) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Body::from(body.to_owned())).unwrap()
}

fn answer_content(state: &SharedState, path: &str, headers: &HeaderMap) -> Response<Body> {
    let mut shared = state.lock().unwrap();
    let name = content_path(path).unwrap().to_owned();
    let Some(file) = shared.files.iter().find(|file| file.name == name).cloned() else { return plain(404, &[], "") };
    let queued = shared.faults.get_mut(&name).and_then(VecDeque::pop_front);
    let fault = queued.or_else(|| shared.standing.get(&name).cloned());
    drop(shared);

    if let Some(Fault::Status(status, headers)) = &fault {
        return plain(*status, headers, "no");
    }
    let mut content = file.content.to_vec();
    match &fault {
        Some(Fault::Corrupt) => *content.last_mut().unwrap() ^= 1,
        Some(Fault::Shorter(by)) => content.truncate(content.len() - by),
        _ => {}
    }
    let total = content.len();
    let asked = headers.get(header::RANGE).map(|range| {
        let text = range.to_str().unwrap().strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap();
        text.parse::<usize>().unwrap()
    });
    let (status, start) = match (asked, &fault) {
        (None, _) | (_, Some(Fault::IgnoreRange)) => (StatusCode::OK, 0),
        (Some(start), _) if start >= total => {
            return plain(416, &[("content-range", format!("bytes */{total}"))], "");
        }
        (Some(start), Some(Fault::ShiftedRange)) => (StatusCode::PARTIAL_CONTENT, start + 1),
        (Some(start), _) => (StatusCode::PARTIAL_CONTENT, start),
    };
    let content = Bytes::from(content).slice(start..);
    let mut response = Response::builder().status(status).header(header::CONTENT_LENGTH, content.len());
    if status == StatusCode::PARTIAL_CONTENT {
        response = response.header(header::CONTENT_RANGE, format!("bytes {start}-{}/{total}", total - 1));
    }
    response.body(body_with(content, fault.as_ref())).unwrap()
}

fn body_with(content: Bytes, fault: Option<&Fault>) -> Body {
    match fault {
        Some(&Fault::CloseAfter(count)) => {
            let first = content.slice(..count.min(content.len()));
            let broken = stream::once(async {
                // Gives the first bytes the time to leave.
                tokio::time::sleep(Duration::from_millis(30)).await;
                Err(io::Error::from(io::ErrorKind::ConnectionReset))
            });
            Body::from_stream(stream::iter([Ok(first)]).chain(broken))
        }
        Some(&Fault::StallAfter(count)) => {
            let first = content.slice(..count.min(content.len()));
            Body::from_stream(stream::iter([Ok::<_, io::Error>(first)]).chain(stream::pending()))
        }
        Some(&Fault::Drip(piece, pause)) => {
            let pieces: Vec<Bytes> =
                (0..content.len()).step_by(piece).map(|at| content.slice(at..content.len().min(at + piece))).collect();
            Body::from_stream(stream::iter(pieces).then(move |bytes| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, io::Error>(bytes)
            }))
        }
        _ => Body::from(content),
    }
}
