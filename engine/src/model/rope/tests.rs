use super::*;

#[test]
fn linear_divides_all_and_none_divides_nothing() {
    assert_eq!(rope(1e4, Scaling::Linear { factor: 4.0 }, 8).unwrap().factors, [4.0; 4]);
    assert!(rope(1e4, Scaling::None, 8).unwrap().factors.is_empty());
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    assert!(rope(0.0, Scaling::None, 8).is_err());
    assert!(rope(f64::NAN, Scaling::None, 8).is_err());
    assert!(rope(1e4, Scaling::Linear { factor: -1.0 }, 8).is_err());
}
