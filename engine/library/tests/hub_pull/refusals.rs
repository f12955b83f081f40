//! What cannot be pulled, and what the user is told.

use std::path::Path;

use linnet_library::{PullError, PullRequest, pull};
use serde_json::json;

use crate::server::{COMMIT, FakeHub, Fault, REPOSITORY};
use crate::{WEIGHTS, client_of, hub_with_model, large, noise, pull_from, quiet, small};

async fn listing_refused(status: u16, code: Option<&str>, token: Option<&str>) -> PullError {
    let hub = hub_with_model().await;
    let mut headers = vec![("x-error-message", "the hub's own words".to_owned())];
    headers.extend(code.map(|code| ("x-error-code", code.to_owned())));
    hub.answer_listing(status, headers, "");
    let folder = tempfile::tempdir().unwrap();
    let request = PullRequest::new(REPOSITORY);
    let error = pull(&client_of(&hub.endpoint, token), &request, folder.path(), &quiet).await.unwrap_err();
    assert!(!error.to_string().contains("hf_secret"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    error
}

#[tokio::test]
async fn a_private_or_misspelt_repository_says_both() {
    let error = listing_refused(401, Some("RepoNotFound"), None).await;
    assert!(matches!(error, PullError::RepositoryNotFound { token_sent: false, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(REPOSITORY) && text.contains("spelling") && text.contains("HF_TOKEN"), "{text}");
    let with_token = listing_refused(404, Some("RepoNotFound"), Some("hf_secret")).await;
    assert!(matches!(with_token, PullError::RepositoryNotFound { token_sent: true, .. }), "{with_token:?}");
}

#[tokio::test]
async fn a_gated_repository_says_where_its_terms_are() {
    for (status, token) in [(401, None), (403, Some("hf_secret"))] {
        let error = listing_refused(status, Some("GatedRepo"), token).await;
        assert!(matches!(&error, PullError::Gated { page, .. } if page.ends_with(REPOSITORY)), "{error:?}");
        assert!(error.to_string().contains("the hub's own words"), "{error}");
    }
}

#[tokio::test]
async fn a_bad_token_and_a_narrow_token_are_told_apart() {
    let bad = listing_refused(401, None, Some("hf_secret")).await;
    assert!(matches!(bad, PullError::TokenRefused { .. }), "{bad:?}");
    let narrow = listing_refused(403, None, Some("hf_secret")).await;
    assert!(matches!(narrow, PullError::Forbidden { .. }), "{narrow:?}");
}

#[tokio::test]
async fn a_missing_revision_is_named() {
    let error = listing_refused(404, Some("RevisionNotFound"), None).await;
    assert!(matches!(&error, PullError::RevisionNotFound { revision, .. } if revision == "main"), "{error:?}");
}

#[tokio::test]
async fn a_long_pause_is_told_not_waited_for() {
    let hub = hub_with_model().await;
    hub.answer_listing(429, vec![("retry-after", "3600".into())], "");
    let error = pull_from(&hub, Path::new("/nowhere")).await.unwrap_err();
    assert!(error.to_string().contains("3600 s"), "{error}");
}

#[tokio::test]
async fn a_hub_that_fails_for_good_is_an_error_with_its_status() {
    let hub = hub_with_model().await;
    (0..3).for_each(|_| hub.answer_listing(502, vec![], ""));
    let error = pull_from(&hub, Path::new("/nowhere")).await.unwrap_err();
    assert!(matches!(error, PullError::Server { status: 502, .. }), "{error:?}");
    assert_eq!(hub.seen().len(), 3);
}

#[tokio::test]
async fn an_unreachable_hub_is_named() {
    let hub = hub_with_model().await;
    let endpoint = hub.endpoint.clone();
    drop(hub);
    let client = client_of(&endpoint, None);
    let error = pull(&client, &PullRequest::new(REPOSITORY), Path::new("/nowhere"), &quiet).await.unwrap_err();
    let host = endpoint.trim_start_matches("http://");
    assert!(matches!(&error, PullError::Unreachable { host: named, .. } if named == host), "{error:?}");
}

#[tokio::test]
async fn a_login_page_is_not_taken_for_a_listing() {
    let hub = hub_with_model().await;
    hub.answer_listing(200, vec![], "<html>Welcome to the hotel</html>");
    let error = pull_from(&hub, Path::new("/nowhere")).await.unwrap_err();
    assert!(matches!(error, PullError::UnexpectedAnswer { .. }), "{error:?}");
}

#[tokio::test]
async fn redirects_without_end_are_an_error() {
    let hub = hub_with_model().await;
    let location = format!("/api/models/{REPOSITORY}/revision/main?blobs=true");
    (0..20).for_each(|_| hub.answer_listing(302, vec![("location", location.clone())], ""));
    let error = pull_from(&hub, Path::new("/nowhere")).await.unwrap_err();
    assert!(error.to_string().contains("redirects"), "{error}");
}

#[tokio::test]
async fn a_name_that_leaves_the_folder_stops_the_pull_before_it_begins() {
    for name in ["../../escaped.json", "/tmp/escaped.json", "a/../../escaped.json", "..\\escaped.json"] {
        let hub = hub_with_model().await;
        let mut listing = hub.listing();
        listing["siblings"].as_array_mut().unwrap().push(json!({"rfilename": name, "size": 1}));
        hub.list(listing);
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a/b");
        let error = pull_from(&hub, &target).await.unwrap_err();
        assert!(matches!(&error, PullError::UnsafeName { name: named, .. } if named == name), "{error:?}");
        assert_eq!(hub.seen().len(), 1);
        assert!(!target.exists());
    }
}

#[tokio::test]
async fn too_little_room_is_told_before_anything_is_downloaded() {
    let hub = hub_with_model().await;
    let size = 1_u64 << 60;
    let large = json!({"rfilename": WEIGHTS, "size": size, "lfs": {"sha256": "a".repeat(64), "size": size}});
    hub.list(json!({"sha": COMMIT, "siblings": [{"rfilename": "config.json", "size": 1}, large]}));
    let folder = tempfile::tempdir().unwrap();
    let error = pull_from(&hub, folder.path()).await.unwrap_err();
    assert!(
        matches!(error, PullError::NoSpace { needed, available, .. } if needed > size && available < size),
        "{error:?}"
    );
    assert_eq!(hub.seen().len(), 1);
}

#[tokio::test]
async fn another_size_than_listed_is_an_error() {
    let hub = hub_with_model().await;
    hub.fail_always(WEIGHTS, Fault::Shorter(7));
    let folder = tempfile::tempdir().unwrap();
    let error = pull_from(&hub, folder.path()).await.unwrap_err();
    assert!(matches!(error, PullError::WrongSize { expected, offered, .. } if expected == offered + 7), "{error:?}");
    assert!(!folder.path().join(WEIGHTS).exists());
}

#[tokio::test]
async fn a_listed_file_that_is_not_there_is_named() {
    let hub = hub_with_model().await;
    let mut listing = hub.listing();
    let absent = json!({"rfilename": "vocab.json", "size": 1, "blobId": "b".repeat(40)});
    listing["siblings"].as_array_mut().unwrap().push(absent);
    hub.list(listing);
    let folder = tempfile::tempdir().unwrap();
    let error = pull_from(&hub, folder.path()).await.unwrap_err();
    assert!(matches!(&error, PullError::FileNotFound { file, .. } if file == "vocab.json"), "{error:?}");
}

#[tokio::test]
async fn several_gguf_files_are_listed_with_their_sizes() {
    let hub = FakeHub::start(vec![
        small("config.json", "{}"),
        large("m.Q4_0.gguf", noise(5000)),
        large("m.Q8_0.gguf", noise(9000)),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    let error = pull_from(&hub, folder.path()).await.unwrap_err().to_string();
    assert!(error.contains("m.Q4_0.gguf (5.0 kB)") && error.contains("m.Q8_0.gguf (9.0 kB)"), "{error}");
}

#[tokio::test]
async fn a_target_that_cannot_be_written_is_named() {
    let hub = hub_with_model().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "x").unwrap();
    let error = pull_from(&hub, &file).await.unwrap_err();
    assert!(error.to_string().contains("a file"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
}
