use super::table;
use crate::simulate::day::Rules;
use crate::simulate::pair::Cut;

const RULES: Rules = Rules {
    warm_s: 20.0,
    seconds: 200.0,
    lengths: crate::lengths::Lengths::Fixed(100),
    good_s: 1.0,
    seed: 1,
};

fn line(target: &str, load: &str, total: f64) -> String {
    format!("{{\"target\":\"{target}\",\"load\":\"{load}\",\"total\":{total},\"other\":1}}\n")
}

#[test]
fn a_sweep_is_held_against_what_its_own_curves_say() {
    let folder = tempfile::tempdir().unwrap();
    let write = |lines: &[String]| {
        std::fs::write(folder.path().join("cells.jsonl"), lines.concat()).unwrap();
    };
    let mut lines = vec![
        line("speculative", "1", 100.0),
        line("speculative", "4", 200.0),
        line("speculative", "4", 300.0),
        line("throughput", "1", 50.0),
        line("throughput", "4", 180.0),
        line("throughput", "poisson:3", 9.0),
        // Two below the threshold: speculative alone, which makes 150 with both.
        line("switch", "2", 150.0),
        line("one", "2", 150.0),
    ];
    write(&lines);
    let found = table(folder.path(), &Cut::default(), RULES).unwrap();
    assert!(found.contains("\n| 2 | switch | 150 | 150 | +0 % |\n"), "{found}");
    assert!(found.ends_with("Error: median 0.0 %, largest 0.0 %.\n") && !found.contains("one"));
    // A router that believed in a threshold of 0 used throughput alone: 93.3 with both.
    let file = "{\"format\":1,\"threshold\":{\"high\":0},\"curves\":{\"speculative\":[[1,9]],\
                \"throughput\":[[1,9]]}}";
    std::fs::write(folder.path().join("calibration.json"), file).unwrap();
    let found = table(folder.path(), &Cut::default(), RULES).unwrap();
    assert!(found.contains("\n| 2 | switch | 150 | 93 | -38 % |\n"), "{found}");
    lines.retain(|it| !it.contains("throughput"));
    write(&lines);
    let why = table(folder.path(), &Cut::default(), RULES).unwrap_err();
    assert_eq!(why, "no target is called throughput");
    write(&["nonsense\n".to_owned()]);
    assert!(table(folder.path(), &Cut::default(), RULES).unwrap_err().contains("line 1"));
}
