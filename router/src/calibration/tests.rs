use super::*;

fn parse(curves: &str, rest: &str) -> Result<Calibration, String> {
    Calibration::parse(&format!(
        r#"{{"format": 1, "key": {{"model": "m"}}, "measured": "2026-11-29T20:00:00Z",
            "curves": {curves}, "depth": [[4, 5]] {rest}}}"#
    ))
}

const BOTH: &str = r#"{"speculative": [[1, 96], [2, 180], [4, 240], [8, 260], [16, 250]],
    "throughput": [[1, 54.0], [2, 107.0], [4, 200.0], [8, 390.0], [16, 640.0]]}"#;

#[test]
fn curves_are_linear_between_points_and_flat_beyond() {
    let curve = Curve::new(vec![(2, 100.0), (4, 160.0)]).unwrap();
    let speeds: Vec<_> = (0..=6).map(|it| curve.at(it)).collect();
    assert_eq!(speeds, [0.0, 50.0, 100.0, 130.0, 160.0, 160.0, 160.0]);
}

#[test]
fn a_gain_is_the_best_that_lies_ahead() {
    let curve =
        Curve::new(vec![(1, 96.0), (2, 150.0), (3, 148.0), (4, 210.0), (8, 190.0)]).unwrap();
    let gains: Vec<_> = (0..=8).map(|it| curve.gain(it)).collect();
    assert_eq!(gains, [96.0, 54.0, 30.0, 62.0, -5.0, -5.0, -5.0, -5.0, 0.0]);
}

#[test]
fn one_of_several_routers_sees_its_part_of_a_curve() {
    let curve = Curve::new(vec![(1, 96.0), (4, 240.0), (10, 300.0)]).unwrap();
    assert_eq!(curve.clone().share(1), curve);
    let part = curve.share(4);
    // Four routers with one request each are four requests, at 240 together.
    let speeds: Vec<_> = (0..=4).map(|it| part.at(it)).collect();
    assert_eq!(speeds, [0.0, 60.0, 70.0, 75.0, 75.0]);
}

#[test]
fn the_threshold_is_the_written_one_or_where_the_curves_cross() {
    let written = parse(BOTH, r#", "threshold": {"high": 9, "low": 7, "confidence": 0.95}"#);
    let written = written.unwrap();
    assert_eq!((written.thresholds, written.confidence), (Some((9, 7)), 0.95));
    let no_low = parse(BOTH, r#", "threshold": {"high": 8}"#);
    let no_low = no_low.unwrap();
    assert_eq!((no_low.thresholds, no_low.confidence), (Some((8, 6)), 1.0));
    // At 4 the speculative instance has 240 against 200, at 5 245 against 247.5.
    assert_eq!(parse(BOTH, "").unwrap().thresholds, Some((4, 3)));
    assert_eq!(parse(r#"{"speculative": [[1, 96.0]]}"#, "").unwrap().thresholds, None);
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_place() {
    for (curves, rest, part) in [
        (r#"{"fast": [[1, 2.0]]}"#, "", "curves.fast: not a role"),
        (r#"{"speculative": []}"#, "", "curves.speculative: has no points"),
        (r#"{"speculative": [[0, 1.0]]}"#, "", "starts at 0"),
        (r#"{"speculative": [[2, 1.0], [2, 3.0]]}"#, "", "must grow"),
        (r#"{"speculative": [[1, -1.0]]}"#, "", "not a number of at least 0"),
        (r#"{"speculative": [[4000000000, 1.0]]}"#, "", "goes beyond 65536"),
        (BOTH, r#", "threshold": {"high": 2, "low": 3}"#, "low is above"),
        (BOTH, r#", "together": 1.5"#, "from 0 to 1"),
        (BOTH, r#", "threshold": {"high": 2, "confidence": -0.5}"#, "confidence is not a number"),
        ("7", "", "invalid type"),
    ] {
        let why = parse(curves, rest).unwrap_err();
        assert!(why.contains(part), "{why}");
    }
    assert!(Calibration::parse(r#"{"format": 2}"#).unwrap_err().contains("this version reads 1"));
}

#[test]
fn instances_share_nothing_unless_the_file_says_so() {
    assert_eq!(parse(BOTH, "").unwrap().together, 1.0);
    assert_eq!(parse(BOTH, r#", "together": 0.79"#).unwrap().together, 0.79);
}

#[test]
fn the_usual_low_is_three_quarters() {
    let lows: Vec<_> = [0, 1, 2, 4, 8, 10, 100].into_iter().map(usual_low).collect();
    assert_eq!(lows, [0, 0, 1, 3, 6, 7, 75]);
}
