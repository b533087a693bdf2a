use std::collections::BTreeSet;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{Args, LoadArgs, block, measure, run};
use crate::load::open::tests::server;
use crate::report::Texts;
use crate::target;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    load: LoadArgs,
}

fn load(line: &str) -> LoadArgs {
    <Line as clap::Parser>::try_parse_from(line.split(' ')).unwrap().load
}

/// Every step of every round is there, and what was measured is kept as it goes.
#[tokio::test]
async fn a_sweep_measures_each_target_under_each_load_in_each_round() {
    let (url, _server) = server(Duration::from_millis(1)).await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("{date}-x").display().to_string();
    let args = load(&format!(
        "sweep --model m --concurrency 1,2 --arrivals poisson:50 --seconds 0.2 --rounds 2 \
         --out {out}"
    ));
    let target = |name: &str| target::parse(&format!("{name}={url}")).unwrap();
    let results = measure(vec![target("a"), target("b")], &args).await.unwrap();
    assert_eq!(results.cells.len(), 2 * 3 * 2);
    assert!(results.cells.iter().all(|it| it.failures() == 0));
    let closed = results.cells.iter().filter(|it| it.place.load == "2");
    assert!(closed.map(|it| it.requests).eq([6; 4]));
    let texts = Texts::of(&results.samples);
    assert!(0 < texts.compared && texts.differing == 0);
    let kept = folder.path().join(format!("{}-x/cells.csv", results.origin.day()));
    assert_eq!(std::fs::read_to_string(kept).unwrap().lines().count(), 13);
}

#[tokio::test]
async fn what_cannot_be_measured_is_refused_before_anything_is_sent() {
    let far = target::parse("a=http://10.0.0.1:1").unwrap();
    let why = measure(vec![far], &load("sweep --model m")).await.unwrap_err();
    assert!(why.contains("--allow-remote"), "{why}");
    let none = target::parse("a=http://127.0.0.1:1").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let late = folder.path().join("late.txt").display().to_string();
    std::fs::write(&late, "40\n41\n").unwrap();
    for (line, part) in [
        ("--concurrency 1,2,1".to_owned(), "there are two loads called 1"),
        (format!("--arrivals trace:{late}"), "trace of 2: no request comes within 30 seconds"),
        ("--arrivals poisson:1e9".to_owned(), "poisson:1000000000: more than 1000000 requests"),
        ("--metrics http://127.0.0.1:1/metrics".to_owned(), "metrics: cannot be read"),
        (format!("--out {late}/x"), "cannot make "),
    ] {
        let why = measure(vec![none.clone()], &load(&format!("sweep --model m {line}"))).await;
        let why = why.unwrap_err();
        assert!(why.contains(part), "{line}: {why}");
    }
    let twice = measure(vec![none.clone(), none.clone()], &load("sweep --model m")).await;
    assert_eq!(twice.unwrap_err(), "there are two targets called a");
    let why = measure(vec![none], &load("sweep")).await.unwrap_err();
    assert!(why.starts_with("http://127.0.0.1:1/v1/models: "), "{why}");
}

/// Each target gets each prompt once, and nobody else's cache for it.
#[tokio::test]
async fn all_targets_get_the_same_prompts_when_asked() {
    let (url, _server) = server(Duration::from_millis(1)).await;
    let args = load("sweep --model m --concurrency 2,3 --rounds 2 --same-prompts");
    let target = |name: &str| target::parse(&format!("{name}={url}")).unwrap();
    let results = measure(vec![target("a"), target("b")], &args).await.unwrap();
    let prompts = |name: &str| -> Vec<u32> {
        let of = results.samples.iter().filter(|it| it.target == name).map(|it| it.prompt);
        of.collect::<BTreeSet<_>>().into_iter().collect()
    };
    assert_eq!(prompts("a"), prompts("b"));
    assert_eq!(results.samples.len(), 2 * prompts("a").len());
    assert_eq!(Texts::of(&results.samples).compared, prompts("a").len());
}

#[test]
fn targets_share_prompts_over_rounds_but_never_within_one() {
    let seen = |target: usize| -> BTreeSet<u32> {
        (0..3).map(|round| block(round, 1, target, 3)).collect()
    };
    for round in 0..3 {
        let blocks: BTreeSet<u32> =
            (0..4).flat_map(|load| (0..3).map(move |it| block(round, load, it, 3))).collect();
        assert_eq!(blocks.len(), 12);
    }
    assert_eq!(seen(0), seen(1));
    assert_eq!(seen(1), seen(2));
}

#[test]
fn loads_that_send_nothing_are_refused() {
    for flag in ["concurrency", "rounds", "requests-each", "in-flight-max"] {
        let line = ["sweep".to_owned(), format!("--{flag}"), "0".to_owned()];
        let why = <Line as clap::Parser>::try_parse_from(line).err().unwrap().to_string();
        assert!(why.contains("0 is not in 1..="), "{why}");
    }
}

/// What comes again from round to round is not answered from a prefix cache.
#[tokio::test]
async fn no_two_steps_share_cached_prefixes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target::parse(&format!("a=http://{}", listener.local_addr().unwrap())).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut salts = BTreeSet::new();
        // Two steps of six requests each.
        for _ in 0..12 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 8192];
            let len = stream.read(&mut head).await.unwrap();
            let text = String::from_utf8(head[..len].to_vec()).unwrap();
            let salt = text.split("\"cache_salt\":\"").nth(1).unwrap();
            salts.insert(salt.split('"').next().unwrap().to_owned());
            let answer = "HTTP/1.1 503 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        assert_eq!(salts.len(), 2);
    });
    let load = load("sweep --model m --concurrency 1 --rounds 2");
    let why = run(Args { targets: vec![target], load }).await.unwrap_err();
    assert_eq!(why, "12 of 12 requests failed (status 503: 12)");
    tasks.join_next().await.unwrap().unwrap();
}
