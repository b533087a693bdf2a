use super::Lengths;

#[test]
fn lengths_have_their_mean_and_their_bounds() {
    let mut rng = fastrand::Rng::with_seed(5);
    for (text, mean, longest) in
        [("100", 100.0, 100), ("50-150", 100.0, 150), ("tail:100", 100.0, 800)]
    {
        let lengths: Lengths = text.parse().unwrap();
        assert_eq!(lengths.to_string(), text);
        let drawn: Vec<u32> = (0..20_000).map(|_| lengths.sample(&mut rng)).collect();
        let found = drawn.iter().copied().map(f64::from).sum::<f64>() / 20_000.0;
        assert!((found / mean - 1.0).abs() < 0.03, "{text}: {found}");
        assert!(drawn.iter().all(|it| (1..=longest).contains(it)), "{text}");
        assert_eq!(lengths.of(3), lengths.of(3));
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for text in ["", "0", "x", "9-3", "0-3", "tail:0", "-4"] {
        assert!(text.parse::<Lengths>().is_err(), "{text}");
    }
}
