use router::calibration::Curve;
use router::config::Role;

use super::{Crossing, Measure, Rules, Search, usual_ladder};
use crate::calibration::thresholds;
use crate::simulate::ladders::{self, Ladder};

/// A pair whose speeds are known, seen through noise and through a machine that slows down and
/// recovers over tens of runs.
struct Noisy {
    ladder: Ladder,
    rng: fastrand::Rng,
    noise: f64,
    /// What is left of each when both run.
    together: f64,
    runs: u32,
}

impl Measure for Noisy {
    async fn total(&mut self, role: Role, in_flight: u32) -> Result<f64, String> {
        let curve = match role {
            Role::Speculative => &self.ladder.speculative,
            Role::Throughput => &self.ladder.throughput,
        };
        self.runs += 1;
        let drift = 1.0 - 0.2 * (f64::from(self.runs) / 11.0).sin();
        let noise = (2.0 * self.rng.f64() - 1.0) * self.noise;
        Ok(curve.at(in_flight) * drift * (1.0 + noise))
    }

    async fn both(&mut self, in_flight: u32, _: [f64; 2]) -> Result<[f64; 2], String> {
        let speculative = self.total(Role::Speculative, in_flight).await?;
        let throughput = self.total(Role::Throughput, in_flight).await?;
        Ok([speculative * self.together, throughput * self.together])
    }
}

fn noisy(ladder: &Ladder, noise: f64, seed: u64) -> Noisy {
    let rng = fastrand::Rng::with_seed(seed);
    Noisy { ladder: ladder.clone(), rng, noise, together: 0.8, runs: 0 }
}

fn rules(in_flight_max: u32) -> Rules {
    let ladder = usual_ladder(in_flight_max);
    Rules { ladder, repeats_min: 3, repeats_max: 7, sure: 0.95 }
}

fn block_on<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(task)
}

#[test]
fn the_crossing_is_found_within_one_step_in_few_runs() {
    for (name, in_flight_max) in [("published", 64), ("h200-135m-k3", 256), ("cpu-pair", 32)] {
        let ladder = ladders::built_in().into_iter().find(|it| it.name == name).unwrap();
        let (high, _) = thresholds(&ladder.speculative, &ladder.throughput, in_flight_max);
        for seed in 0..100 {
            let mut search = Search::new(noisy(&ladder, 0.04, seed), rules(in_flight_max));
            let crossing = block_on(search.run()).unwrap();
            let steps = &search.rules.ladder;
            let step = |n: u32| steps.partition_point(|it| *it <= n);
            let file = search.file(crossing);
            let found = file.threshold.clone().unwrap();
            assert!(step(found.high).abs_diff(step(high)) <= 1, "{name} {seed}: {found:?}, {high}");
            assert!(found.low <= found.high && (0.0..=1.0).contains(&found.confidence));
            // A full grid with as few repeats would need this many.
            assert!(search.runs() as usize <= 2 * 4 * steps.len(), "{name}: {}", search.runs());
            let read = file.read_by_router().unwrap();
            assert_eq!(read.thresholds, Some((found.high, found.low)));
            // `marginal` reads straight lines between points.
            let loads: Vec<u32> =
                file.curves[Role::Speculative.label()].iter().map(|it| it.0).collect();
            assert!(loads.windows(2).all(|it| it[1] <= it[0] * 2), "{name} {seed}: {loads:?}");
            let together = block_on(search.together(crossing)).unwrap();
            assert!((together - 0.8).abs() <= 0.08, "{name} {seed}: {together}");
            assert!(search.sentence(crossing).contains(&format!("threshold {}", found.high)));
        }
    }
}

#[test]
fn a_pair_that_never_crosses_is_told_as_it_is() {
    let ladder = ladders::built_in().into_iter().find(|it| it.name == "published").unwrap();
    let mut search = Search::new(noisy(&ladder, 0.0, 1), rules(4));
    let crossing = block_on(search.run()).unwrap();
    assert_eq!(crossing, Crossing { below: Some(4), above: None });
    assert_eq!(search.file(crossing).threshold.unwrap().high, 4);
    let swapped = Ladder {
        speculative: ladder.throughput.clone(),
        throughput: ladder.speculative,
        name: ladder.name,
        thresholds: None,
        together: 1.0,
    };
    let mut search = Search::new(noisy(&swapped, 0.0, 1), rules(4));
    let crossing = block_on(search.run()).unwrap();
    assert_eq!(crossing, Crossing { below: None, above: Some(1) });
    let threshold = search.file(crossing).threshold.unwrap();
    assert_eq!((threshold.high, threshold.low), (0, 0));
    assert!(search.sentence(crossing).starts_with("Speculation is never faster: 0.5"));
}

/// As the default pair on an H200 does: one threshold holds for one crossing, so a person is told.
#[test]
fn a_pair_that_crosses_twice_is_told_as_it_is() {
    let curve = |points: &[(u32, f64)]| Curve::new(points.to_vec()).unwrap();
    let ladder = Ladder {
        name: "twice".to_owned(),
        speculative: curve(&[(1, 2837.0), (16, 28285.0), (64, 43189.0), (256, 87173.0)]),
        throughput: curve(&[(1, 1694.0), (32, 35381.0), (64, 55904.0), (256, 74284.0)]),
        thresholds: None,
        together: 1.0,
    };
    let mut search = Search::new(noisy(&ladder, 0.02, 3), rules(256));
    let crossing = block_on(search.run()).unwrap();
    let text = search.sentence(crossing);
    assert!(text.contains("It is faster again, 1.1") && text.contains("at 256: "), "{text}");
    let once = ladders::built_in().into_iter().find(|it| it.name == "published").unwrap();
    let mut search = Search::new(noisy(&once, 0.02, 3), rules(64));
    let crossing = block_on(search.run()).unwrap();
    assert!(search.sentence(crossing).ends_with("runs)."));
}

#[test]
fn a_threshold_that_still_stands_is_confirmed_and_a_wrong_one_is_not() {
    let ladder = ladders::built_in().into_iter().find(|it| it.name == "published").unwrap();
    for (high, stands) in [(6, true), (2, false), (24, false)] {
        let mut search = Search::new(noisy(&ladder, 0.02, 5), rules(64));
        assert_eq!(block_on(search.confirms(high)).unwrap(), stands, "{high}");
        assert!(search.runs() <= 28);
    }
}

#[test]
fn a_dead_instance_ends_the_search() {
    struct Dead;
    impl Measure for Dead {
        async fn total(&mut self, _: Role, _: u32) -> Result<f64, String> {
            Ok(0.0)
        }

        async fn both(&mut self, _: u32, _: [f64; 2]) -> Result<[f64; 2], String> {
            Ok([0.0; 2])
        }
    }
    let why = block_on(Search::new(Dead, rules(8)).run()).unwrap_err();
    assert_eq!(why, "speculative made no tokens with 1 in flight");
}

#[test]
fn a_ladder_has_halves_and_ends_where_told() {
    assert_eq!(usual_ladder(20), [1, 2, 3, 4, 6, 8, 12, 16, 20]);
    assert_eq!(usual_ladder(1), [1]);
}

/// Whichever way chance lets a tie at the first load fall, speculation is on where it is faster.
#[test]
fn a_tie_at_the_first_load_does_not_hide_what_follows() {
    let curve = |points: &[(u32, f64)]| Curve::new(points.to_vec()).unwrap();
    let ladder = Ladder {
        name: "tie".to_owned(),
        speculative: curve(&[(1, 100.0), (2, 230.0), (8, 800.0), (64, 1500.0)]),
        throughput: curve(&[(1, 100.0), (2, 190.0), (8, 650.0), (64, 3000.0)]),
        thresholds: None,
        together: 1.0,
    };
    for seed in 0..100 {
        let mut search = Search::new(noisy(&ladder, 0.04, seed), rules(64));
        let crossing = block_on(search.run()).unwrap();
        let high = search.high(crossing);
        let sure = search.rungs[&1].sure();
        // One in twenty is sure of what is not so.
        assert!(8 <= high || sure <= 0.05, "{seed}: {high}, {sure}");
    }
}
