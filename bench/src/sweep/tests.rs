use std::collections::BTreeSet;
use std::time::Duration;

use super::{LoadArgs, block, measure};
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
    let zero = load("sweep --model m --concurrency 0");
    let why = measure(vec![none.clone()], &zero).await.unwrap_err();
    assert_eq!(why, "--concurrency 0 sends nothing");
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
