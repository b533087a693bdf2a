use super::*;

fn sample(total: u32) -> Sample {
    let counts = Counts::of_routed(u64::from(total));
    Sample {
        total,
        waiting: 0,
        mode: Role::Speculative,
        endpoints: vec![("a".into(), total, counts)],
    }
}

#[test]
fn keeps_ten_minutes_and_counts_one() {
    let mut history = History::default();
    assert_eq!(history.minute("a").routed, 0);
    for total in 0..1000 {
        history.push(sample(total));
    }
    assert_eq!(history.samples().count(), 600);
    assert_eq!(history.samples().next().unwrap().total, 400);
    assert_eq!(history.minute("a").routed, 60);
    assert_eq!(history.minute("b").routed, 0);
    let counted = history.samples().filter(|it| it.endpoints[0].2 != Counts::default());
    assert_eq!(counted.count(), 61);
}
