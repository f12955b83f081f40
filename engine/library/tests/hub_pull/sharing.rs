//! Several pulls of the same model, in one process and in two, and one that is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use linnet_library::{PullRequest, pull};

use crate::server::{FakeHub, Fault, REPOSITORY};
use crate::{
    WEIGHTS, WEIGHTS_SIZE, assert_whole, client_of, hub_with_model, large, noise, pull_from, quiet, small,
    weights_partial,
};

const CHILD_ENDPOINT: &str = "LINNET_TEST_PULL_ENDPOINT";
const CHILD_TARGET: &str = "LINNET_TEST_PULL_TARGET";

/// Not a test of its own: what the other process does in the tests below.
#[tokio::test]
#[ignore = "is the other process of other tests"]
async fn pull_in_another_process() {
    let (Ok(endpoint), Ok(target)) = (std::env::var(CHILD_ENDPOINT), std::env::var(CHILD_TARGET)) else { return };
    pull(&client_of(&endpoint, None), &PullRequest::new(REPOSITORY), Path::new(&target), &quiet).await.unwrap();
}

fn start_other_process(hub: &FakeHub, target: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sharing::pull_in_another_process", "--ignored"])
        .env(CHILD_ENDPOINT, &hub.endpoint)
        .env(CHILD_TARGET, target)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

async fn wait_for_partial(target: &Path, length: usize) {
    while weights_partial(target).is_none_or(|(_, bytes)| bytes.len() < length) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn drip() -> Fault {
    Fault::Drip(WEIGHTS_SIZE / 8, Duration::from_millis(60))
}

fn assert_each_blob_once(hub: &FakeHub) {
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        assert_eq!(hub.ranges(name), [None], "{name}");
    }
}

#[tokio::test]
async fn two_tasks_download_each_blob_once() {
    let hub = hub_with_model().await;
    hub.fail_always(WEIGHTS, drip());
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = tokio::join!(pull_from(&hub, folder.path()), pull_from(&hub, folder.path()));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_each_blob_once(&hub);
    assert_whole(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_download_each_blob_once() {
    let hub = hub_with_model().await;
    hub.fail_always(WEIGHTS, drip());
    let folder = tempfile::tempdir().unwrap();
    let mut other = start_other_process(&hub, folder.path());
    wait_for_partial(folder.path(), 1).await;
    pull_from(&hub, folder.path()).await.unwrap();
    let status = tokio::task::spawn_blocking(move || other.wait().unwrap()).await.unwrap();
    assert!(status.success());
    assert_each_blob_once(&hub);
    assert_whole(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_at_half_is_gone_on_with_from_half() {
    let hub = hub_with_model().await;
    let half = WEIGHTS_SIZE / 2;
    hub.fail_next(WEIGHTS, [Fault::StallAfter(half)]);
    let folder = tempfile::tempdir().unwrap();
    let mut other = start_other_process(&hub, folder.path());
    wait_for_partial(folder.path(), half).await;
    other.kill().unwrap();
    other.wait().unwrap();
    hub.forget();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [Some(format!("bytes={half}-"))]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn a_pull_that_waits_takes_over_when_the_other_gives_up() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::StallAfter(1000)]);
    let folder = tempfile::tempdir().unwrap();
    let first = async {
        tokio::select! {
            _ = pull_from(&hub, folder.path()) => panic!("it cannot finish"),
            () = wait_for_partial(folder.path(), 1000) => {}
        }
    };
    let second = async {
        wait_for_partial(folder.path(), 1).await;
        pull_from(&hub, folder.path()).await
    };
    let ((), pulled) = tokio::join!(first, second);
    pulled.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [None, Some("bytes=1000-".into())]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn the_same_content_under_two_names_is_downloaded_once() {
    let hub = FakeHub::start(vec![
        small("config.json", "{}"),
        large("one.safetensors", noise(5000)),
        large("two.safetensors", noise(5000)),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    let pulled = pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(pulled.bytes, 10_002);
    assert_eq!(hub.ranges("one.safetensors").len() + hub.ranges("two.safetensors").len(), 1);
    for name in ["one.safetensors", "two.safetensors"] {
        assert_eq!(std::fs::read(folder.path().join(name)).unwrap(), noise(5000));
    }
    assert!(!folder.path().join(".linnet-pull").exists());
}
