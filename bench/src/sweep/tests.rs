use std::collections::BTreeSet;

use super::block;

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
