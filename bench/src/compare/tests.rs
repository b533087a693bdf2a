use super::peer::Kind;
use super::{parse_program, ratios};
use crate::report::tests::results;

#[test]
fn programs_are_named_by_kind() {
    let (kind, path) = parse_program("llama-server=/x/llama-server").unwrap();
    assert_eq!((kind, path.to_str()), (Kind::LlamaServer, Some("/x/llama-server")));
    assert!(parse_program("llama=/x").is_err());
    assert!(parse_program("nginx").is_err());
}

#[test]
fn ratios_are_ours_over_theirs() {
    let mut results = results();
    results.targets[0] = "crossover".to_owned();
    for cell in &mut results.cells {
        if cell.place.target == "fast" {
            cell.place.target = "crossover".to_owned();
        }
    }
    let text = ratios(&results);
    assert!(text.starts_with("| load | over slow |\n|---|---|\n| 1 | 2.00 / 1.00 |\n| 8 | 2.00"));
    results.cells[0].broken = 1;
    let text = ratios(&results);
    assert!(text.contains("\n| 1 | 2.00 / 1.00 ! |\n| 8 | 2.00 / 1.00 |"), "{text}");
}
