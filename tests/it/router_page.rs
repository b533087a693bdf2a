//! The operators' page in a real browser, where there is one.

use std::process::Command;
use std::sync::Arc;

use router::admin::{self, Admin};
use tests::fake_engine::{FakeEngine, Step};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::router_rig::{CHAT, Raw, Rig, eventually, pair, post};

pub(crate) fn browser() -> Option<&'static str> {
    let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(runs)
}

/// The page as the browser has built it after a few seconds of its own time.
pub(crate) async fn built(url: String, browser: &'static str) -> String {
    let run = move || {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .args(["--virtual-time-budget=4000", "--dump-dom"])
            .arg(url)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_what_is_going_on() {
    let Some(browser) = browser() else {
        println!("skipped: no chromium here");
        return;
    };
    let engine = FakeEngine::start(|_| vec![Step::ReadBody, Step::Stall]).await;
    let text = format!("[policy]\nhigh = 2\nlow = 1\n{}", pair(&[&engine, &engine]));
    let rig = Rig::start(&text).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(admin::serve(Arc::new(Admin::new(Arc::clone(&rig.fleet))), listener));
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = Raw::connect(rig.address()).await;
        client.send(post(CHAT, "", "{}")).await;
        clients.push(client);
    }
    eventually("all are in flight", || rig.fleet.total() == 5).await;
    let page = built(format!("http://{address}/"), browser).await;
    for part in [
        "<title>5 in flight, throughput</title>",
        "class=\"pill throughput\"",
        "above 2: throughput",
        "1 or fewer: speculative",
        "2 of 256",
        "3 of 256",
        "threshold 2",
        "policy switch",
    ] {
        assert!(page.contains(part), "{part} in\n{page}");
    }
    assert!(!page.contains("<body class=\"lost\""), "{page}");
}
