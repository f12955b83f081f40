//! Pulls that are broken off, and what the next one makes of it.

use std::time::{Duration, Instant};

use linnet_library::{FileState, PullError};

use crate::server::{Fault, SIGNATURE};
use crate::{WEIGHTS, WEIGHTS_SIZE, assert_whole, hub_with_model, noise, pull_and_listen, pull_from, weights_partial};

const HALF: usize = WEIGHTS_SIZE / 2;

fn from_byte(start: usize) -> Option<String> {
    Some(format!("bytes={start}-"))
}

#[tokio::test]
async fn a_dropped_pull_goes_on_from_where_it_was() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::StallAfter(HALF)]);
    let folder = tempfile::tempdir().unwrap();
    let half_is_here = async {
        while weights_partial(folder.path()).is_none_or(|(_, bytes)| bytes.len() < HALF) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = pull_from(&hub, folder.path()) => panic!("half of it cannot be all"),
        () = half_is_here => {}
    }
    hub.forget();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [from_byte(HALF)]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn a_connection_that_breaks_is_gone_on_with() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::CloseAfter(1000), Fault::CloseAfter(500)]);
    let folder = tempfile::tempdir().unwrap();
    let (pulled, heard) = pull_and_listen(&hub, folder.path()).await;
    pulled.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [None, from_byte(1000), from_byte(1500)]);
    assert_whole(folder.path());
    let states = heard.iter().flat_map(|progress| &progress.files).map(|file| &file.state);
    assert!(states.clone().any(|state| matches!(state, FileState::Retrying { failures: 1, .. })));
}

#[tokio::test]
async fn a_connection_that_always_breaks_ends_in_an_error_and_keeps_the_partial() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::CloseAfter(1000)]);
    hub.fail_always(WEIGHTS, Fault::CloseAfter(0));
    let folder = tempfile::tempdir().unwrap();
    let error = pull_from(&hub, folder.path()).await.unwrap_err();
    assert!(matches!(error, PullError::Truncated { received: 1000, attempts: 3, .. }), "{error:?}");
    assert!(!error.to_string().contains(SIGNATURE), "{error}");
    assert_eq!(weights_partial(folder.path()).unwrap().1, noise(WEIGHTS_SIZE)[..1000]);
    assert!(!folder.path().join(WEIGHTS).exists());
    hub.heal();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn a_server_that_ignores_the_range_makes_the_file_begin_anew() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::CloseAfter(1000), Fault::IgnoreRange]);
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [None, from_byte(1000)]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn a_part_that_begins_elsewhere_is_not_appended() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::CloseAfter(1000), Fault::ShiftedRange]);
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [None, from_byte(1000), None]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn a_refused_range_makes_the_file_begin_anew() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::CloseAfter(1000), Fault::Status(416, vec![("content-range", "bytes */9".into())])]);
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [None, from_byte(1000), None]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn a_complete_partial_is_only_verified() {
    let hub = hub_with_model().await;
    hub.fail_always(WEIGHTS, Fault::CloseAfter(10));
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap_err();
    std::fs::write(weights_partial(folder.path()).unwrap().0, noise(WEIGHTS_SIZE)).unwrap();
    hub.forget();
    pull_from(&hub, folder.path()).await.unwrap();
    assert!(hub.ranges(WEIGHTS).is_empty());
    assert_whole(folder.path());
}

#[tokio::test]
async fn a_damaged_partial_is_dropped_once_and_fetched_anew() {
    let hub = hub_with_model().await;
    hub.fail_always(WEIGHTS, Fault::CloseAfter(10));
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap_err();
    hub.heal();
    hub.forget();
    std::fs::write(weights_partial(folder.path()).unwrap().0, vec![0; HALF]).unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    assert_eq!(hub.ranges(WEIGHTS), [from_byte(HALF), None]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn content_that_is_always_wrong_ends_in_an_error_after_two_downloads() {
    let hub = hub_with_model().await;
    hub.fail_always(WEIGHTS, Fault::Corrupt);
    let folder = tempfile::tempdir().unwrap();
    let error = pull_from(&hub, folder.path()).await.unwrap_err();
    assert!(matches!(&error, PullError::WrongHash { file, .. } if file == WEIGHTS), "{error:?}");
    assert_eq!(hub.ranges(WEIGHTS), [None, None]);
    assert!(weights_partial(folder.path()).is_none() && !folder.path().join(WEIGHTS).exists());
}

#[tokio::test]
async fn silence_is_shown_retried_and_at_last_an_error() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::StallAfter(HALF)]);
    hub.fail_always(WEIGHTS, Fault::StallAfter(0));
    let folder = tempfile::tempdir().unwrap();
    let (pulled, heard) = pull_and_listen(&hub, folder.path()).await;
    let error = pulled.unwrap_err();
    assert!(matches!(error, PullError::Stalled { attempts: 3, received, .. } if received == HALF as u64), "{error:?}");
    assert!(!error.to_string().contains(SIGNATURE), "{error}");
    let states = heard.iter().flat_map(|progress| &progress.files).map(|file| &file.state);
    assert!(states.clone().any(|state| matches!(state, FileState::Stalled { .. })));
    assert_eq!(weights_partial(folder.path()).unwrap().1.len(), HALF);
    assert_eq!(hub.ranges(WEIGHTS), [None, from_byte(HALF), from_byte(HALF)]);
}

#[tokio::test]
async fn a_slow_drip_is_not_silence() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::Drip(WEIGHTS_SIZE / 10, Duration::from_millis(80))]);
    let folder = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    pull_from(&hub, folder.path()).await.unwrap();
    assert!(begin.elapsed() > Duration::from_millis(600), "it took longer than the stall limit");
    assert_eq!(hub.ranges(WEIGHTS), [None]);
    assert_whole(folder.path());
}

#[tokio::test]
async fn an_expired_signed_address_is_renewed_at_the_hub() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::Status(403, vec![])]);
    let folder = tempfile::tempdir().unwrap();
    pull_from(&hub, folder.path()).await.unwrap();
    let asked =
        hub.seen().iter().filter(|seen| seen.path.contains("/resolve/") && seen.path.ends_with(WEIGHTS)).count();
    assert_eq!(asked, 2);
}

#[tokio::test]
async fn a_busy_server_is_waited_for_as_long_as_it_says() {
    let hub = hub_with_model().await;
    hub.fail_next(WEIGHTS, [Fault::Status(429, vec![("retry-after", "1".into())]), Fault::Status(503, vec![])]);
    let folder = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    pull_from(&hub, folder.path()).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert_whole(folder.path());
}
