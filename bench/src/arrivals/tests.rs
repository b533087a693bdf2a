use super::{Arrivals, Shape};

fn rate(shape: &str, seconds: f64) -> f64 {
    let arrivals = Arrivals::new(shape.parse().unwrap(), 1);
    arrivals.take_while(|it| *it < seconds).count() as f64 / seconds
}

#[test]
fn every_shape_keeps_its_rate() {
    for (shape, seconds, expected) in [
        ("poisson:20", 1000.0, 20.0),
        ("bursts:20x8", 4000.0, 20.0),
        ("square:5-35@0.5", 1000.0, 20.0),
        ("daily:2", 86_400.0, 2.0),
    ] {
        let found = rate(shape, seconds);
        assert!((found / expected - 1.0).abs() < 0.03, "{shape}: {found}");
    }
}

#[test]
fn times_are_in_order_and_a_seed_repeats_them() {
    for shape in ["poisson:20", "bursts:20x8", "square:5-35@2", "daily:2"] {
        let shape: Shape = shape.parse().unwrap();
        let times = |seed| Arrivals::new(shape.clone(), seed).take(500).collect::<Vec<_>>();
        assert!(times(7).windows(2).all(|pair| pair[0] <= pair[1]), "{shape}");
        assert_eq!(times(7), times(7));
        assert_ne!(times(7), times(8));
    }
}

#[test]
fn a_burst_comes_at_once_and_a_square_wave_has_two_levels() {
    let times: Vec<f64> = Arrivals::new("bursts:8x4".parse().unwrap(), 3).take(8).collect();
    assert!(times[0] == times[3] && times[3] < times[4]);
    let square = Arrivals::new("square:1-19@0.1".parse().unwrap(), 3);
    let times: Vec<f64> = square.take_while(|it| *it < 1000.0).collect();
    let busy = times.iter().filter(|it| **it % 10.0 < 5.0).count() as f64 / times.len() as f64;
    assert!((busy - 0.95).abs() < 0.02, "{busy}");
}

#[test]
fn a_trace_is_read_as_it_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    std::fs::write(&path, "# seconds\n0\n0.5\n0.5\n2.25\n").unwrap();
    let shape: Shape = format!("trace:{}", path.display()).parse().unwrap();
    assert_eq!(Arrivals::new(shape, 0).collect::<Vec<_>>(), [0.0, 0.5, 0.5, 2.25]);
    std::fs::write(&path, "2\n1\n").unwrap();
    assert!(format!("trace:{}", path.display()).parse::<Shape>().is_err());
}

#[test]
fn wrong_shapes_are_refused() {
    for text in [
        "",
        "poisson",
        "poisson:0",
        "poisson:x",
        "bursts:2",
        "bursts:2x0",
        "square:1@2",
        "square:1-2",
        "daily:-1",
        "trace:/nowhere/x",
        "steady:3",
    ] {
        assert!(text.parse::<Shape>().is_err(), "{text}");
    }
}
