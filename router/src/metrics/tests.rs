use std::fs;
use std::path::Path;

use super::*;

/// The README lists every metric, and no other.
#[test]
fn the_readme_lists_every_metric() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let table = readme.split("## Metrics").nth(1).unwrap();
    let cells = table.lines().filter_map(|it| it.strip_prefix("| ")?.split(" |").next());
    let mut listed: Vec<_> = cells
        .flat_map(|it| it.split(", "))
        .filter_map(|it| it.strip_prefix('`')?.strip_suffix('`'))
        .map(str::to_owned)
        .collect();
    let source = fs::read_to_string(root.join("src/metrics.rs")).unwrap();
    let builders = source.split("let b = Builder").nth(1).unwrap();
    let quoted = builders.split('"').skip(1).step_by(2);
    let is_name = |it: &&str| it.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let labels = [
        "endpoint",
        "code",
        "target",
        "reason",
        "class",
        "outcome",
        "why",
        "result",
        "direction",
        "policy",
        "to",
        "mode",
        "bound",
    ];
    let mut named: Vec<_> = quoted.filter(is_name).map(str::to_owned).collect();
    named.retain(|it| it == "mode" || !labels.contains(&it.as_str()));
    for list in [&mut listed, &mut named] {
        list.sort();
        list.dedup();
    }
    assert!(25 < named.len());
    assert_eq!(listed, named);
}

#[test]
fn a_scrape_has_every_label_once_looked_up() {
    let metrics = Metrics::new();
    let endpoint = metrics.endpoint("a");
    endpoint.responded(200);
    endpoint.responded(999);
    endpoint.ended(Outcome::BrokenOff);
    let text = prometheus::TextEncoder::new().encode_to_string(&metrics.registry.gather());
    let text = text.unwrap();
    for line in [
        "crossover_router_responses_total{class=\"2xx\",endpoint=\"a\"} 1",
        "crossover_router_responses_total{class=\"5xx\",endpoint=\"a\"} 1",
        "crossover_router_outcomes_total{endpoint=\"a\",outcome=\"broken_off\"} 1",
        "crossover_router_outcomes_total{endpoint=\"a\",outcome=\"complete\"} 0",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}");
    }
}

#[test]
fn the_readme_names_every_outcome_and_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let outcomes = Outcome::ALL.map(Outcome::label);
    let reasons = Reason::ALL.map(Reason::label);
    for word in outcomes.iter().chain(&reasons) {
        assert!(readme.contains(&format!("`{word}`")), "{word}");
    }
}
