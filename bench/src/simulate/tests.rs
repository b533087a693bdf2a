use std::collections::BTreeMap;

use router::calibration::Curve;

use super::day::{self, Outcome, Rules, Traffic};
use super::ladders::{self, Ladder};
use super::pair::{Cut, Strategy};
use super::{Args, read, table};
use crate::calibrate::search::usual_ladder;
use crate::lengths::Lengths;

const RULES: Rules = Rules {
    warm_s: 30.0,
    seconds: 300.0,
    lengths: Lengths::Even { low: 64, high: 192 },
    good_s: 0.05,
    seed: 1,
};

/// As long as 3000 requests take on this pair.
fn brief(ladder: &Ladder) -> Rules {
    let seconds = 3000.0 * 128.0 / ladder.throughput.at(64);
    Rules { warm_s: seconds / 10.0, seconds, ..RULES }
}

const POLICIES: [Strategy; 3] = [Strategy::Switch, Strategy::Spill, Strategy::Marginal];

fn clients(n: u32) -> Traffic {
    Traffic::Clients { low: n, high: n, hertz: 1.0 }
}

fn ladder(name: &str) -> Ladder {
    ladders::built_in().into_iter().find(|it| it.name == name).unwrap()
}

fn seen(ladder: &Ladder, strategy: Strategy, traffic: &Traffic) -> Outcome {
    day::run(&Cut::default().system(ladder, strategy), traffic, RULES)
}

fn total(ladder: &Ladder, strategy: Strategy, traffic: &Traffic) -> f64 {
    day::run(&Cut::default().system(ladder, strategy), traffic, brief(ladder)).total
}

/// A closed loop on one instance makes what its curve says: the model's own arithmetic.
#[test]
fn one_instance_follows_its_curve() {
    for ladder in ladders::built_in() {
        for n in [1, 2, 5, 16, 33, 100] {
            for (strategy, curve) in [
                (Strategy::Speculative, &ladder.speculative),
                (Strategy::Throughput, &ladder.throughput),
            ] {
                let ratio = total(&ladder, strategy, &clients(n)) / curve.at(n);
                assert!((ratio - 1.0).abs() < 1e-9, "{} {strategy:?} {n}: {ratio}", ladder.name);
            }
        }
    }
}

#[test]
fn a_seed_repeats_a_day_and_another_does_not() {
    let ladder = ladder("published");
    let traffic = Traffic::Open("bursts:4x6".parse().unwrap());
    let of = |seed| {
        let system = Cut::default().system(&ladder, Strategy::Marginal);
        let found = day::run(&system, &traffic, Rules { seed, ..RULES });
        (found.arrived, found.ended, found.total.to_bits(), found.latency_s.mean().to_bits())
    };
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
}

/// Two instances that keep three quarters of their speeds while both are at work: four clients
/// make what both curves say for two, less a quarter; one client makes what one curve says.
#[test]
fn instances_slow_each_other_down_only_while_both_are_at_work() {
    let alone = ladder("cpu-pair");
    let shared = Ladder { together: 0.75, ..alone.clone() };
    let of = |ladder: &Ladder, n| total(ladder, Strategy::Adaptive, &clients(n));
    let is_near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.01;
    assert!(is_near(of(&shared, 4), 0.75 * of(&alone, 4)), "{}", of(&shared, 4));
    assert!(is_near(of(&shared, 1), of(&alone, 1)));
    // With nothing gained by the second instance, `marginal` leaves it alone.
    let useless = Ladder { together: 0.3, ..alone };
    let of = |strategy| total(&useless, strategy, &clients(4));
    assert!(is_near(of(Strategy::Marginal), of(Strategy::Speculative)));
}

#[test]
fn every_request_arrives_once_and_ends_once() {
    let ladder = ladder("cpu-pair");
    for strategy in Strategy::ALL {
        // The last two are more than the pair can take: some of it must be refused.
        for (shape, is_too_much) in [
            ("poisson:2", false),
            ("bursts:2x16", false),
            ("square:0.5-4@0.1", false),
            ("poisson:30", true),
            ("bursts:20x2000", true),
        ] {
            let found = seen(&ladder, strategy, &Traffic::Open(shape.parse().unwrap()));
            assert!(0 < found.arrived && found.latency_s.count() <= found.ended);
            assert_eq!(found.arrived, found.ended + found.shed, "{strategy:?} {shape}");
            assert_eq!(found.shed != 0, is_too_much, "{strategy:?} {shape}: {}", found.shed);
        }
        let found = seen(&ladder, strategy, &Traffic::Clients { low: 2, high: 40, hertz: 0.2 });
        assert_eq!((found.arrived, found.shed), (found.ended, 0), "{strategy:?}");
        let found = seen(&ladder, strategy, &clients(1800));
        assert_eq!(found.arrived, found.ended + found.shed, "{strategy:?}");
        assert!(found.shed != 0, "{strategy:?}");
    }
}

/// The claim: at every concurrency the pair is as good as the better of its modes, in total.
#[test]
fn a_closed_loop_is_as_good_as_the_better_mode_at_every_concurrency() {
    for ladder in ladders::built_in() {
        for n in (1..=24).chain([32, 48, 64, 96, 128, 192]) {
            let of = |strategy| total(&ladder, strategy, &clients(n));
            let better = of(Strategy::Speculative).max(of(Strategy::Throughput));
            for policy in POLICIES {
                let share = of(policy) / better;
                assert!(0.97 <= share, "{} {policy:?} at {n}: {share:.3}", ladder.name);
            }
        }
    }
}

/// Below the threshold a request is as fast as on the speculative instance alone.
#[test]
fn at_low_concurrency_each_request_is_as_fast_as_with_speculation_only() {
    for ladder in ladders::built_in() {
        let (high, _) = Cut::default().thresholds(&ladder);
        for n in 1..=high.min(16) {
            let of = |strategy| {
                let system = Cut::default().system(&ladder, strategy);
                day::run(&system, &clients(n), brief(&ladder)).pace.quantile(0.5)
            };
            let alone = of(Strategy::Speculative);
            for policy in POLICIES {
                let share = of(policy) / alone;
                assert!(0.97 <= share, "{} {policy:?} at {n}: {share:.3}", ladder.name);
            }
        }
    }
}

#[test]
fn marginal_is_never_worse_than_the_others() {
    for ladder in ladders::built_in() {
        for n in (1..=24).chain([32, 48, 64, 96, 128, 192]) {
            let of = |strategy| total(&ladder, strategy, &clients(n));
            let others = of(Strategy::Switch).max(of(Strategy::Spill));
            let share = of(Strategy::Marginal) / others;
            assert!(0.97 <= share, "{} at {n}: {share:.3}", ladder.name);
        }
    }
}

/// Curves as a calibration with few repeats gives them: on a ladder, each point some per cent off.
fn rough(ladder: &Ladder, seed: u64) -> Ladder {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut curve = |curve: &Curve| {
        let noisy = |n: u32| (n, curve.at(n) * (1.0 + 0.04 * (2.0 * rng.f64() - 1.0)));
        Curve::new(usual_ladder(64).into_iter().map(noisy).collect()).unwrap()
    };
    Ladder {
        speculative: curve(&ladder.speculative),
        throughput: curve(&ladder.throughput),
        ..ladder.clone()
    }
}

/// A dip that is only noise must not keep requests away from what lies beyond it.
#[test]
fn marginal_bears_what_calibration_gets_wrong() {
    for ladder in ladders::built_in() {
        for seed in 0..20 {
            let believed = rough(&ladder, seed);
            for n in [3, 12, 32] {
                let cut = Cut::default();
                let system = cut.system_that_believes(&believed, &ladder, Strategy::Marginal);
                let found = day::run(&system, &clients(n), brief(&ladder)).total;
                let share = found / ladder.speculative.at(n).max(ladder.throughput.at(n));
                assert!(0.97 <= share, "{} at {n}, seed {seed}: {share:.3}", ladder.name);
            }
        }
    }
}

/// Load that swings around the threshold, slower and faster than the dwell and than a request.
#[test]
fn swinging_load_loses_little_against_the_better_fixed_mode() {
    for ladder in ladders::built_in() {
        let (high, low) = Cut::default().thresholds(&ladder);
        let (low, high) = (low.saturating_sub(high / 2).max(1), high + high / 2);
        for hertz in [0.1, 0.3, 1.0, 3.0, 10.0] {
            let traffic = Traffic::Clients { low, high, hertz };
            let of = |strategy| {
                let rules = Rules { warm_s: 10.0, seconds: 60.0, ..RULES };
                day::run(&Cut::default().system(&ladder, strategy), &traffic, rules).total
            };
            let better = of(Strategy::Speculative).max(of(Strategy::Throughput));
            for policy in POLICIES {
                let share = of(policy) / better;
                assert!(0.97 <= share, "{} {policy:?} at {hertz} Hz: {share:.3}", ladder.name);
            }
        }
    }
}

/// The same with requests that come whatever happens: time is what can be lost.
#[test]
fn swinging_arrivals_lose_little_time_against_the_better_fixed_mode() {
    for ladder in ladders::built_in() {
        let (high, _) = Cut::default().thresholds(&ladder);
        let rate = ladder.speculative.at(high) / 128.0;
        for hertz in [0.1, 1.0, 10.0] {
            let shape = format!("square:{}-{}@{hertz}", rate * 0.4, rate * 1.2);
            let traffic = Traffic::Open(shape.parse().unwrap());
            let of = |strategy| seen(&ladder, strategy, &traffic).latency_s.mean();
            let better = of(Strategy::Speculative).min(of(Strategy::Throughput));
            for policy in POLICIES {
                let share = of(policy) / better;
                assert!(share <= 1.03, "{} {policy:?} at {hertz} Hz: {share:.3}", ladder.name);
            }
        }
    }
}

/// Each sees its part of the requests only, so near the threshold they do not agree.
#[test]
fn several_routers_cost_little_where_each_has_a_request() {
    for ladder in ladders::built_in() {
        for n in [2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128] {
            for policy in POLICIES {
                let of = |replicas| {
                    let cut = Cut { replicas, ..Cut::default() };
                    let found = day::run(&cut.system(&ladder, policy), &clients(n), brief(&ladder));
                    assert_eq!(found.arrived, found.ended + found.shed);
                    found.total
                };
                for (replicas, least) in [(2, 0.93), (4, 0.92), (8, 0.88)] {
                    let share = of(replicas) / of(1);
                    let at = format!("{} {policy:?} at {n}, {replicas}", ladder.name);
                    assert!(n < replicas || least <= share, "{at}: {share:.3}");
                }
            }
        }
    }
}

#[test]
fn ten_thousand_instances_behave_like_two() {
    let ladder = ladder("published");
    let rules = Rules { warm_s: 5.0, seconds: 3.0, ..RULES };
    let of = |pairs: u32| {
        let cut = Cut { pairs, ..Cut::default() };
        let found = day::run(&cut.system(&ladder, Strategy::Spill), &clients(12 * pairs), rules);
        assert_eq!(found.arrived, found.ended);
        found.total / f64::from(pairs)
    };
    let ratio = of(5000) / of(1);
    assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
}

#[test]
fn a_table_names_every_strategy_and_every_load() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let line = "simulate --clients 1,8 --swing 2-10@1 --arrivals poisson:1 --seconds 20";
    let args = <Line as clap::Parser>::parse_from(line.split(' ')).args;
    let text = table(&args, &ladder("published"), 0.5);
    assert!(text.starts_with("published: 1 pair(s), 0.5 of both partitions speculative"));
    for part in ["| switch | spill |", "| one |", "\n| 8 |", "| 2-10 at 1 Hz |", "| poisson:1 |"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn a_calibration_file_gives_curves() {
    let points = |speed: f64| vec![(1, speed), (8, 4.0 * speed)];
    let file = crate::calibration::File::of(points(96.0), points(54.0));
    assert_eq!(read(&file.text()).unwrap().speculative.at(1), 96.0);
    let mut bad = file;
    bad.curves = BTreeMap::from([("speculative".to_owned(), points(96.0))]);
    assert_eq!(read(&bad.text()).unwrap_err(), "has no curve for throughput");
    bad.curves.insert("throughput".to_owned(), vec![(1, 5.0), (9, 0.0)]);
    assert_eq!(read(&bad.text()).unwrap_err(), "curves.throughput: stands still");
}

#[test]
fn assumptions_are_numbers() {
    for wrong in ["nan", "inf", "-1", "1.1", "x"] {
        assert!(super::parse_part(wrong).is_err(), "{wrong}");
    }
    assert_eq!(super::parse_part("0.8"), Ok(0.8));
}
