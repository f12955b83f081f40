//! Pulling from the hub, against a server on loopback that speaks its protocol and fails in every way a network does.

// The whole crate is a test; clippy sees that only of its test functions, not of their helpers.
#![allow(clippy::unwrap_used)]

mod refusals;
mod resume;
mod server;
mod sharing;
mod store;
mod whole;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use linnet_library::{HubClient, HubOptions, PullError, PullProgress, PullRequest, Pulled, pull};
use server::{FakeHub, REPOSITORY, ServedFile};

/// The weights' name in the model that the tests pull.
const WEIGHTS: &str = "model.safetensors";

/// Bytes of its weights.
const WEIGHTS_SIZE: usize = 300_000;

/// Bytes that look random and are the same in every run and process.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..size)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

fn small(name: &str, content: &str) -> ServedFile {
    ServedFile { name: name.into(), content: content.as_bytes().to_vec().into(), large: false }
}

fn large(name: &str, content: Vec<u8>) -> ServedFile {
    ServedFile { name: name.into(), content: content.into(), large: true }
}

/// A hub with one model: configuration, tokenizer, weights.
async fn hub_with_model() -> FakeHub {
    FakeHub::start(vec![
        small("README.md", "not part of a model"),
        small("config.json", "{\"model_type\": \"llama\"}"),
        small("tokenizer.json", "{}"),
        large(WEIGHTS, noise(WEIGHTS_SIZE)),
    ])
    .await
}

fn impatient() -> HubOptions {
    HubOptions {
        connect_limit: Duration::from_secs(2),
        stall_limit: Duration::from_millis(300),
        attempts: 3,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(40),
        longest_wait: Duration::from_secs(3),
        parallel_files: 4,
    }
}

fn client_of(endpoint: &str, token: Option<&str>) -> HubClient {
    let variable = |name: &str| match name {
        "HF_ENDPOINT" => Some(OsString::from(endpoint)),
        "HF_TOKEN" => token.map(OsString::from),
        _ => None,
    };
    HubClient::from_variables(&variable, impatient()).unwrap()
}

fn quiet(_: &PullProgress) {}

async fn pull_from(hub: &FakeHub, target: &Path) -> Result<Pulled, PullError> {
    pull(&client_of(&hub.endpoint, None), &PullRequest::new(REPOSITORY), target, &quiet).await
}

/// As [`pull_from`], with everything that was reported.
async fn pull_and_listen(hub: &FakeHub, target: &Path) -> (Result<Pulled, PullError>, Vec<PullProgress>) {
    let heard = Mutex::new(Vec::new());
    let listen = |progress: &PullProgress| heard.lock().unwrap().push(progress.clone());
    let result = pull(&client_of(&hub.endpoint, None), &PullRequest::new(REPOSITORY), target, &listen).await;
    (result, heard.into_inner().unwrap())
}

/// Path and bytes of the weights' partial, if there is one.
fn weights_partial(target: &Path) -> Option<(std::path::PathBuf, Vec<u8>)> {
    let stem = server::sha256(&noise(WEIGHTS_SIZE));
    let path = target.join(".linnet-pull").join(format!("{stem}.partial"));
    std::fs::read(&path).ok().map(|bytes| (path, bytes))
}

fn assert_whole(target: &Path) {
    assert!(std::fs::read(target.join(WEIGHTS)).unwrap() == noise(WEIGHTS_SIZE), "the weights are not as served");
    let mut names: Vec<String> =
        std::fs::read_dir(target).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["config.json", WEIGHTS, "tokenizer.json"]);
}
