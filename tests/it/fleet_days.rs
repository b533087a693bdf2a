//! Simulated days of a fleet: load, crashes, partitions, reloads, leavers; and what must hold.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use router::config::{Config, Role};
use router::fleet::Fleet;
use tests::rng::Rng;
use tokio::task::JoinSet;
use turmoil::Sim;

use super::fleet_sim::{End, Habits, Ledger, Tales, client, engine, router};
use super::router_rig::config;

/// One day, drawn from a seed.
#[derive(Clone, Copy, Debug)]
struct Day {
    seed: u64,
    policy: &'static str,
    clients: u32,
    habits: Habits,
    in_flight_max: u32,
    waiting_max: u32,
    faults: bool,
    reloads: bool,
    tick_ms: u64,
}

const HIGH: u32 = 8;
const DWELL_MS: u64 = 300;
const ENGINES: [(&str, &str); 3] = [("s", "speculative"), ("t", "throughput"), ("u", "throughput")];

fn config_of(day: &Day) -> Config {
    let mut text = format!(
        "[policy]\n{}\n\
         [queue]\nwaiting_max = {}\nwait_ms_max = 600000\n\
         [timeouts]\nconnect_ms = 300\nfirst_byte_ms = 2000\nidle_ms = 2000\n\
         client_idle_ms = 20000\n\
         [health]\ninterval_ms = 100\ntimeout_ms = 500\nslow_start_ms = 500\n\
         [breaker]\nrest_ms = 200\nrest_ms_max = 1000\n",
        day.policy, day.waiting_max
    );
    for (name, role) in ENGINES {
        text += &format!(
            "[[endpoint]]\nname = {name:?}\nrole = {role:?}\nurl = \"http://{name}\"\n\
             in_flight_max = {}\n",
            day.in_flight_max
        );
    }
    config(&text)
}

/// What was seen of a day; equal for equal seeds.
#[derive(Debug, Eq, PartialEq)]
struct Seen {
    ends: BTreeMap<End, u32>,
    transitions: u32,
    waited: bool,
    millis: u128,
}

struct Watch {
    /// Which mode was seen last, and when it began if that was seen.
    mode: Option<(Role, Option<Duration>)>,
    transitions: u32,
    refused: u64,
    waited: bool,
    was_waiting: usize,
    ended: u64,
}

/// What must hold at every step, between any two events.
fn check(day: &Day, fleet: &Arc<Fleet>, now: Duration, watch: &mut Watch) {
    let endpoints = fleet.endpoints();
    let work: u32 = endpoints.iter().map(|it| it.work()).sum();
    let held = u64::from(work + endpoints.iter().map(|it| it.light()).sum::<u32>());
    assert_eq!(fleet.total(), work, "{day:?}");
    // Every lease was counted once when it began and will be once when it ends.
    let counts: Vec<_> = endpoints.iter().map(|it| it.metrics.counts()).collect();
    let begun: u64 = counts.iter().map(|it| it.routed).sum();
    let ended: u64 = counts.iter().map(|it| it.outcomes.iter().sum::<u64>()).sum();
    if !day.reloads {
        assert_eq!(begun - ended, held, "{day:?}");
    }
    // What finds the throughput side full overflows to the other.
    let is_roomy = day.clients <= 2 * day.in_flight_max;
    let is_bound = is_roomy && day.policy == POLICIES[0] && !day.faults && !day.reloads;
    for endpoint in &endpoints {
        assert!(endpoint.work() <= day.in_flight_max, "{day:?}");
        assert!(!is_bound || &*endpoint.name != "s" || endpoint.work() <= HIGH, "{day:?}");
    }
    let waiting = fleet.waiting();
    watch.waited |= waiting != 0;
    if !day.faults && !day.reloads {
        // Nobody waits while a place is free, and only a full queue sheds.
        let room = day.in_flight_max * u32::try_from(ENGINES.len()).unwrap();
        assert!(waiting == 0 || fleet.total() == room, "{day:?}");
        let refused = fleet.metrics.refusals("server_is_overloaded");
        if refused != watch.refused {
            let left = usize::try_from(ended - watch.ended).unwrap();
            let max = usize::try_from(day.waiting_max).unwrap();
            assert!(max <= waiting.max(watch.was_waiting) + left, "{day:?}");
            watch.refused = refused;
        }
    }
    (watch.was_waiting, watch.ended) = (waiting, ended);
    let mode = fleet.mode();
    match watch.mode {
        Some((before, _)) if before == mode => {}
        Some((_, since)) => {
            let lasted = since.map_or(u128::MAX, |it| (now - it).as_millis() + 2);
            assert!(u128::from(DWELL_MS) <= lasted, "{day:?}");
            watch.transitions += 1;
            watch.mode = Some((mode, Some(now)));
        }
        None => watch.mode = Some((mode, None)),
    }
}

/// Does one thing to the world.
fn trouble(day: &Day, sim: &mut Sim<'_>, fleet: &Arc<Fleet>, rng: &mut Rng, down: &mut [u32; 3]) {
    let index = usize::try_from(rng.within(0, 2)).unwrap();
    let name = ENGINES[index].0;
    if day.reloads {
        let mut next = config_of(day);
        match rng.within(0, 3) {
            0 => drop(next.endpoints.remove(index)),
            1 => next.endpoints[index].weight_milli = rng.within(1, 5000),
            2 => next.endpoints.swap(0, index),
            _ => {}
        }
        fleet.reload(next);
    }
    if !day.faults {
        return;
    }
    match down[index] {
        0 => match rng.within(0, 2) {
            0 => {
                sim.crash(name);
                down[index] = 1;
            }
            1 => {
                sim.partition("router", name);
                down[index] = 2;
            }
            _ => {
                let drains = fleet.endpoints().into_iter().find(|it| &*it.name == name);
                if let Some(endpoint) = drains {
                    endpoint.set_draining(!endpoint.is_draining());
                }
            }
        },
        1 => {
            sim.bounce(name);
            down[index] = 0;
        }
        _ => {
            sim.repair("router", name);
            down[index] = 0;
        }
    }
}

fn run(day: &Day) -> Seen {
    let mut sim = turmoil::Builder::new()
        .rng_seed(day.seed)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(3))
        .simulation_duration(Duration::from_secs(3600))
        .tick_duration(Duration::from_millis(day.tick_ms))
        .tcp_capacity(4096)
        .build();
    let (ledger, tales) = (Rc::new(Ledger::default()), Rc::new(Tales::default()));
    for (name, role) in ENGINES {
        let (base_ms, step_us) = if role == "speculative" { (2, 1500) } else { (5, 100) };
        let ledger = Rc::clone(&ledger);
        let (base, step) = (Duration::from_millis(base_ms), Duration::from_micros(step_us));
        sim.host(name, move || engine(Rc::clone(&ledger), base, step));
    }
    let fleet_cell = Rc::new(RefCell::new(None));
    let (start, cell) = (config_of(day), Rc::clone(&fleet_cell));
    sim.host("router", move || router(start.clone(), Rc::clone(&cell)));
    let told = Rc::clone(&tales);
    let day_copy = *day;
    sim.client("clients", async move {
        // The first probes find the engines.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut all = JoinSet::new();
        for number in 0..day_copy.clients {
            let rng = Rng::new(day_copy.seed * 1000 + u64::from(number));
            let first = number * day_copy.habits.requests;
            all.spawn_local(client(rng, first, day_copy.habits, Rc::clone(&told)));
        }
        while let Some(done) = all.join_next().await {
            done?;
        }
        // What clients left behind takes a moment to be noticed.
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    });
    let mut rng = Rng::new(day.seed ^ 0x5eed);
    let mut watch =
        Watch { mode: None, transitions: 0, refused: 0, waited: false, was_waiting: 0, ended: 0 };
    let (mut next_trouble, mut down) = (Duration::from_secs(1), [0; 3]);
    loop {
        let is_over = sim.step().unwrap();
        let Some(fleet) = fleet_cell.borrow().clone() else { continue };
        let now = sim.elapsed();
        check(day, &fleet, now, &mut watch);
        if is_over {
            assert_eq!((fleet.total(), fleet.waiting()), (0, 0), "{day:?}");
            assert_eq!(ledger.active(), 0, "{day:?}");
            break;
        }
        if next_trouble <= now && (day.faults || day.reloads) {
            trouble(day, &mut sim, &fleet, &mut rng, &mut down);
            next_trouble = now + Duration::from_millis(rng.within(50, 900).into());
        }
    }
    // Nobody is lost, and nothing is generated twice.
    assert_eq!(tales.total(), day.clients * day.habits.requests, "{day:?}");
    assert_eq!(tales.count(End::Nothing), 0, "{day:?}");
    assert!(ledger.begun.borrow().values().all(|it| *it == 1), "{day:?}");
    let millis = sim.elapsed().as_millis();
    let ends = tales.ends.lock().unwrap().clone();
    Seen { ends, transitions: watch.transitions, waited: watch.waited, millis }
}

const POLICIES: [&str; 3] = [
    "kind = \"switch\"\nhigh = 8\nlow = 6\ndwell_ms = 300",
    "kind = \"spill\"\nhigh = 8",
    "kind = \"pin\"\nrole = \"throughput\"",
];

/// Enough for both sides, not enough for the queue: nothing fails and nothing is refused.
fn calm(seed: u64) -> Day {
    Day {
        seed,
        policy: POLICIES[0],
        clients: 24,
        habits: Habits { requests: 400, pieces_max: 4, pause_ms_max: 30, leaves_percent: 0 },
        in_flight_max: 64,
        waiting_max: 1000,
        faults: false,
        reloads: false,
        tick_ms: 1,
    }
}

#[test]
fn calm_days_lose_nothing_and_refuse_nothing() {
    let mut requests = 0;
    for seed in 0..4 {
        let mut day = calm(seed);
        day.policy = POLICIES[usize::try_from(seed).unwrap() % 2];
        let seen = run(&day);
        let all = day.clients * day.habits.requests;
        assert_eq!(seen.ends, BTreeMap::from([(End::Whole, all)]), "{day:?}");
        assert!(!seen.waited && (seed % 2 == 1 || 0 < seen.transitions), "{day:?} {seen:?}");
        requests += all;
    }
    assert_eq!(requests, 38_400);
}

#[test]
fn a_day_repeats_from_its_seed() {
    let mut day = calm(7);
    day.habits = Habits { requests: 40, leaves_percent: 10, ..day.habits };
    day.faults = true;
    assert_eq!(run(&day), run(&day));
}

#[test]
fn crowded_days_shed_only_when_full() {
    for seed in 10..14 {
        let day = Day {
            clients: 60,
            habits: Habits { requests: 150, pieces_max: 4, pause_ms_max: 5, leaves_percent: 5 },
            in_flight_max: 12,
            waiting_max: if seed % 2 == 0 { 8 } else { 100 },
            ..calm(seed)
        };
        let seen = run(&day);
        assert!(seen.waited, "{day:?}");
        let refused = seen.ends.keys().any(|it| matches!(it, End::Refused(_)));
        assert_eq!(refused, seed % 2 == 0, "{day:?} {seen:?}");
        let known = |it: &End| matches!(it, End::Whole | End::Left | End::Refused(503));
        assert!(seen.ends.keys().all(known), "{day:?} {seen:?}");
    }
}

#[test]
fn bad_days_answer_everybody_once() {
    for seed in 20..26 {
        let day = Day {
            policy: POLICIES[usize::try_from(seed).unwrap() % 3],
            clients: 24,
            habits: Habits { requests: 250, pieces_max: 6, pause_ms_max: 40, leaves_percent: 10 },
            faults: true,
            reloads: seed % 2 == 0,
            ..calm(seed)
        };
        let seen = run(&day);
        let whole = seen.ends[&End::Whole];
        assert!(day.clients * day.habits.requests / 2 < whole, "{day:?} {seen:?}");
        let known = |it: &End| !matches!(it, End::Nothing | End::Refused(500));
        assert!(seen.ends.keys().all(known), "{day:?} {seen:?}");
    }
}

#[test]
fn reloads_all_day_lose_nothing() {
    for seed in 30..32 {
        let day = Day { reloads: true, ..calm(seed) };
        let seen = run(&day);
        let all = day.clients * day.habits.requests;
        assert_eq!(seen.ends, BTreeMap::from([(End::Whole, all)]), "{day:?}");
    }
}

/// An hour with streams of up to many minutes: none is cut, forgotten or counted twice.
#[test]
fn an_hour_of_long_streams() {
    let habits = Habits { requests: 12, pieces_max: 600, pause_ms_max: 90_000, leaves_percent: 20 };
    let day = Day { clients: 20, habits, tick_ms: 100, ..calm(40) };
    let seen = run(&day);
    let known = |it: &End| matches!(it, End::Whole | End::Left);
    assert!(seen.ends.keys().all(known), "{day:?} {seen:?}");
}
