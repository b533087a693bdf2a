use std::fs;
use std::path::Path;

use super::*;

fn metrics() -> Metrics {
    Metrics::new(&Fixed {
        model: "m".to_owned(),
        mode: "baseline",
        context_max: 8192,
        page_tokens: 16,
        pages: 100,
        simulated_acceptance: false,
    })
}

#[test]
fn names_and_labels_are_those_that_dashboards_know() {
    let metrics = metrics();
    metrics.load.running.set(3);
    metrics.drafts.accepted_at[1].inc_by(5);
    metrics.requests.seconds.first_token.observe(0.05);
    let page = metrics.page();
    for line in [
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total\
         {engine=\"0\",model_name=\"m\",position=\"1\"} 5",
        "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"0.06\"} 1",
        "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} 0",
        "crossover_engine_simulated_acceptance{engine=\"0\",model_name=\"m\"} 0",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} is missing in\n{page}");
    }
}

#[test]
fn bounds_of_token_counts_end_at_the_context() {
    assert_eq!(token_bounds(100), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
}

#[test]
fn the_readme_lists_every_metric() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let table = metrics().table();
    assert!(readme.contains(&table), "the README's table of metrics should be:\n{table}");
}
