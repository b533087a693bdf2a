use super::{chance_above_zero, normal};

#[test]
fn the_normal_distribution_is_as_in_tables() {
    for (z, expected) in [(0.0, 0.5), (1.0, 0.841_345), (1.96, 0.975_002), (-2.326, 0.010_009)] {
        assert!((normal(z) - expected).abs() < 1e-5, "{z}: {}", normal(z));
    }
}

/// Samples whose t is known: mean 1 and a spread that makes t the tabulated quantile.
#[test]
fn few_repeats_follow_student() {
    for (count, t, expected) in
        [(3_u8, 2.920, 0.95), (5, 2.132, 0.95), (7, 1.943, 0.95), (5, 4.604, 0.995)]
    {
        let n = f64::from(count);
        // All at 1 but a pair that is d apart on both sides: variance 2 d^2 / (n - 1).
        let d = (n / (t * t) * (n - 1.0) / 2.0).sqrt();
        let mut values = vec![1.0; usize::from(count)];
        values[0] += d;
        values[1] -= d;
        let found = chance_above_zero(&values);
        assert!((found - expected).abs() < 0.005, "{count} {t}: {found}");
        let mirrored: Vec<f64> = values.iter().map(|it| -it).collect();
        assert!((chance_above_zero(&mirrored) - (1.0 - found)).abs() < 1e-9);
    }
}

#[test]
fn nothing_and_no_spread_have_an_answer() {
    assert_eq!(chance_above_zero(&[]), 0.5);
    assert_eq!(chance_above_zero(&[3.0]), 0.5);
    assert_eq!(chance_above_zero(&[0.0, 0.0]), 0.5);
    assert_eq!(chance_above_zero(&[0.1, 0.1]), 1.0);
    assert_eq!(chance_above_zero(&[-0.1, -0.1]), 0.0);
}
