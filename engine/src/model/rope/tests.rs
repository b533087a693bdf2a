use super::*;

#[test]
fn llama3_keeps_fast_frequencies_and_divides_slow_ones() {
    let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
    let factors = rope(500_000.0, scaling, 128).unwrap().factors;
    assert_eq!(factors.len(), 64);
    assert_eq!(factors[0], 1.0);
    assert_eq!(factors[63], 8.0);
    assert!(factors.is_sorted());
    // 8192 / wavelength is between 1 and 4 for pairs 29 to 34: theirs are blended.
    let blended = factors.iter().filter(|it| 1.0 < **it && **it < 8.0).count();
    assert_eq!(blended, 6);
    // Pair 32: wavelength 2 pi sqrt(500000), worked out by hand.
    assert!((factors[32] - 2.6945).abs() < 1e-3, "{}", factors[32]);
}

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
    let flat = Scaling::Llama3 { factor: 8.0, low: 4.0, high: 4.0, original_context: 8192.0 };
    assert!(rope(1e4, flat, 8).is_err());
}
