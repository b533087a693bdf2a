use super::{median, quantile, spread};

#[test]
fn quantiles_lie_between_neighbours() {
    assert_eq!(quantile(&[], 0.5), None);
    assert_eq!(quantile(&[3.0], 0.99), Some(3.0));
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    assert_eq!(quantile(&[0.0, 10.0], 0.9), Some(9.0));
    assert_eq!(quantile(&[0.0, 10.0], 2.0), Some(10.0));
    assert_eq!(median(&[f64::NAN, 1.0]), Some(1.0));
}

#[test]
fn spread_is_relative() {
    assert_eq!(spread(&[10.0, 10.0, 10.0]), Some(0.0));
    assert_eq!(spread(&[8.0, 10.0, 12.0]), Some(0.1));
    assert_eq!(spread(&[0.0]), None);
}
