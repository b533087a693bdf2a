use std::task::{Context, Poll, Waker};
use std::thread;

use super::*;
use crate::clock;
use crate::config::check::check;
use crate::config::raw::File;
use crate::fleet::lease::Lease;

const WORK: Ask = Ask { target: None, light: false };
const LIGHT: Ask = Ask { target: None, light: true };

fn config(policy: &str, names: &[(&str, &str)], rest: &str) -> Config {
    let mut text = format!("{rest}\n[policy]\n{policy}\n");
    for (name, role) in names {
        text += &format!(
            "[[endpoint]]\nname = {name:?}\nrole = {role:?}\nurl = \"http://h\"\n\
             in_flight_max = 8\n"
        );
    }
    let file: File = toml::from_str(&text).unwrap();
    check(&file).unwrap()
}

const PAIR: [(&str, &str); 2] = [("s", "speculative"), ("t", "throughput")];

fn fleet(policy: &str) -> Arc<Fleet> {
    let fleet = Fleet::new(config(policy, &PAIR, ""), Metrics::new(), clock::now());
    for endpoint in fleet.endpoints() {
        rise(&fleet, &endpoint);
    }
    fleet
}

fn rise(fleet: &Fleet, endpoint: &Endpoint) {
    let rules = &fleet.live().config.health;
    endpoint.with_health(fleet.millis(clock::now()), |it| it.on(Finding::Ready, rules));
}

fn reserve(fleet: &Arc<Fleet>, ask: Ask) -> Result<Lease, Refusal> {
    fleet.reserve(&fleet.live(), ask, &[], clock::now())
}

fn name(lease: &Lease) -> String {
    lease.member().spec.name.to_string()
}

/// Every count is what is held, endpoint by endpoint and in total.
fn check_books(fleet: &Arc<Fleet>, held: &[Lease]) {
    let work = held.iter().filter(|it| !it.is_light()).count();
    assert_eq!(usize::try_from(fleet.total()).unwrap(), work);
    for endpoint in fleet.endpoints() {
        let of = |light| {
            let mine = |it: &&Lease| it.member().state.id == endpoint.id && it.is_light() == light;
            u32::try_from(held.iter().filter(mine).count()).unwrap()
        };
        assert_eq!((endpoint.work(), endpoint.light()), (of(false), of(true)));
    }
}

#[test]
fn leases_are_the_count() {
    let fleet = fleet("high = 2\nlow = 1");
    let mut held: Vec<_> = (0..5).map(|_| reserve(&fleet, WORK).unwrap()).collect();
    held.push(reserve(&fleet, LIGHT).unwrap());
    assert_eq!(held.iter().map(name).collect::<String>(), "sstttt");
    while !held.is_empty() {
        check_books(&fleet, &held);
        held.remove(0);
    }
    check_books(&fleet, &held);
}

#[test]
fn a_burst_never_exceeds_the_threshold() {
    for policy in ["high = 8\nlow = 6", "kind = \"spill\"\nhigh = 8"] {
        let fleet = fleet(policy);
        let barrier = std::sync::Barrier::new(8);
        let leases = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..2 {
                        let lease = reserve(&fleet, WORK).unwrap();
                        leases.lock().unwrap().push(lease);
                    }
                });
            }
        });
        let held = leases.into_inner().unwrap();
        let speculative = held.iter().filter(|it| name(it) == "s").count();
        assert_eq!(speculative, 8, "{policy}");
        check_books(&fleet, &held);
        assert_eq!(reserve(&fleet, WORK).unwrap_err(), Refusal::Overloaded);
    }
}

#[test]
fn counts_survive_reload_removal_and_return() {
    let fleet = fleet("high = 8\nlow = 6");
    let mut held: Vec<_> = (0..3).map(|_| reserve(&fleet, WORK).unwrap()).collect();
    for _ in 0..100 {
        fleet.reload(config("high = 8\nlow = 6", &PAIR[1..], ""));
        check_books(&fleet, &held);
        fleet.reload(config("high = 8\nlow = 6", &PAIR, ""));
        check_books(&fleet, &held);
    }
    assert!(fleet.live().members.iter().all(|it| it.state.is_up()));
    held.push(reserve(&fleet, WORK).unwrap());
    assert_eq!(held.iter().map(name).collect::<String>(), "ssss");
    fleet.reload(config("high = 8\nlow = 6", &PAIR[1..], ""));
    held.clear();
    check_books(&fleet, &held);
    // Nothing holds the endpoint that was dropped: it is forgotten, and comes back as new.
    assert_eq!(fleet.endpoints().len(), 1);
    fleet.reload(config("high = 8\nlow = 6", &PAIR, ""));
    assert!(!fleet.live().members[0].state.is_up());
}

#[test]
fn down_draining_and_tried_endpoints_take_nothing() {
    let fleet = fleet("high = 8\nlow = 6");
    let speculative = Arc::clone(&fleet.live().members[0].state);
    speculative.set_draining(true);
    assert_eq!(name(&reserve(&fleet, WORK).unwrap()), "t");
    speculative.set_draining(false);
    let found = fleet.reserve(&fleet.live(), WORK, &[speculative.id], clock::now());
    assert_eq!(name(&found.unwrap()), "t");
    for endpoint in fleet.endpoints() {
        let rules = &fleet.live().config.health;
        endpoint.with_health(0, |it| it.on(Finding::Refused, rules));
    }
    assert_eq!(reserve(&fleet, WORK).unwrap_err(), Refusal::Down);
    assert_eq!(reserve(&fleet, LIGHT).unwrap_err(), Refusal::Down);
}

#[test]
fn a_breaker_moves_traffic_only_where_there_is_an_elsewhere() {
    let fleet = fleet("high = 8\nlow = 6");
    let fail = |at: usize| {
        for _ in 0..5 {
            let target = Some(Role::ALL[at]);
            let mut lease = reserve(&fleet, Ask { target, light: false }).unwrap();
            lease.report(breaker::Report::Failed, clock::now());
        }
    };
    fail(0);
    assert!(!fleet.live().members[0].state.is_serving());
    assert_eq!(name(&reserve(&fleet, WORK).unwrap()), "t");
    fail(1);
    // Both rest: answers that fail are better than none, and one of them may not.
    assert_eq!(name(&reserve(&fleet, WORK).unwrap()), "s");
}

/// An engine that fails at every generation, and lists its models all the same.
#[test]
fn light_requests_tell_a_breaker_nothing() {
    let fleet = fleet("kind = \"spill\"\nhigh = 8");
    let now = clock::now();
    let report = |ask, report, now| {
        let mut lease = fleet.reserve(&fleet.live(), ask, &[], now).unwrap();
        lease.report(report, now);
        name(&lease)
    };
    for _ in 0..5 {
        assert_eq!(report(LIGHT, breaker::Report::Served, now), "s");
        assert_eq!(report(WORK, breaker::Report::Failed, now), "s");
    }
    let speculative = Arc::clone(&fleet.live().members[0].state);
    assert!(!speculative.is_serving());
    // After the rest the one trial is for tokens; a light request neither takes nor decides it.
    let later = now + Duration::from_secs(2);
    assert_eq!(report(LIGHT, breaker::Report::Served, later), "s");
    assert_eq!(speculative.admission(later), Admission::Trial);
    assert_eq!(report(WORK, breaker::Report::Served, later), "s");
    assert!(speculative.is_serving());
    for _ in 0..9 {
        report(LIGHT, breaker::Report::Failed, later);
    }
    assert!(speculative.is_serving());
}

#[test]
fn a_recovered_endpoint_starts_slowly() {
    let fleet = fleet("kind = \"pin\"\nrole = \"speculative\"");
    let endpoint = Arc::clone(&fleet.live().members[0].state);
    let rules = fleet.live().config.health.clone();
    for finding in [Finding::Refused, Finding::Ready, Finding::Ready] {
        endpoint.with_health(1000, |it| it.on(finding, &rules));
    }
    let caps: Vec<_> = [1000, 2000, 3500, 5999, 6000, 1000]
        .into_iter()
        .map(|now_ms| endpoint.in_flight_max(8, rules.slow_start, now_ms))
        .collect();
    assert_eq!(caps, [1, 1, 4, 7, 8, 8]);
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn arrival(priority: Priority, wait: Duration) -> Arrival {
    Arrival { ask: WORK, priority, tried: Tried::new(), until: clock::now() + wait }
}

/// A fleet of one endpoint with room for eight, and eight leases on it.
fn full() -> (Arc<Fleet>, Vec<Lease>) {
    let fleet = Fleet::new(
        config("", &PAIR[..1], "[queue]\nwaiting_max = 2\n"),
        Metrics::new(),
        clock::now(),
    );
    rise(&fleet, &fleet.endpoints()[0]);
    let held = (0..8).map(|_| reserve(&fleet, WORK).unwrap()).collect();
    (fleet, held)
}

#[tokio::test(start_paused = true)]
async fn a_place_that_comes_free_goes_to_the_first_in_the_queue() {
    let (fleet, mut held) = full();
    let live = fleet.live_owned();
    let wait = Duration::from_secs(10);
    let mut normal = Box::pin(fleet.admit(&live, arrival(Priority::Normal, wait), clock::now()));
    assert!(poll(&mut normal).is_pending());
    let mut high = Box::pin(fleet.admit(&live, arrival(Priority::High, wait), clock::now()));
    assert!(poll(&mut high).is_pending());
    assert_eq!(fleet.waiting(), 2);
    let third = fleet.admit(&live, arrival(Priority::Normal, wait), clock::now()).await;
    assert_eq!(third.unwrap_err(), Refusal::Overloaded);
    held.pop();
    assert_eq!((fleet.total(), fleet.waiting()), (8, 1));
    assert!(poll(&mut normal).is_pending());
    held.push(high.await.unwrap().0);
    held.pop();
    held.push(normal.await.unwrap().0);
    check_books(&fleet, &held);
}

/// A queue full of requests for the speculative role, which has no room, is in nobody else's way.
#[tokio::test(start_paused = true)]
async fn a_queue_of_other_wishes_turns_nobody_away() {
    let text = "[queue]\nwaiting_max = 2\n";
    let fleet = Fleet::new(config("", &PAIR, text), Metrics::new(), clock::now());
    fleet.endpoints().iter().for_each(|it| rise(&fleet, it));
    let live = fleet.live_owned();
    let asking = |target, priority| {
        let ask = Ask { target, light: false };
        Arrival { ask, ..arrival(priority, Duration::from_secs(10)) }
    };
    let strict = || asking(Some(Role::Speculative), Priority::Normal);
    let mut held: Vec<_> = (0..8).map(|_| reserve(&fleet, strict().ask).unwrap()).collect();
    let mut waiting: Vec<_> =
        (0..2).map(|_| Box::pin(fleet.admit(&live, strict(), clock::now()))).collect();
    assert!(waiting.iter_mut().all(|it| poll(it).is_pending()));
    for (target, priority) in [
        (Some(Role::Throughput), Priority::Low),
        (None, Priority::Low),
        (Some(Role::Throughput), Priority::High),
        (None, Priority::High),
    ] {
        let other = asking(target, priority);
        held.push(fleet.admit(&live, other, clock::now()).await.unwrap().0);
        assert_eq!(name(held.last().unwrap()), "t");
        // It costs none of those who wait its place.
        assert!(waiting.iter_mut().all(|it| poll(it).is_pending()), "{target:?} {priority:?}");
        assert_eq!(fleet.waiting(), 2);
    }
    // Nobody passes those who want the same.
    drop(held.remove(0));
    assert_eq!(fleet.waiting(), 1);
    let third = fleet.admit(&live, strict(), clock::now());
    let mut third = Box::pin(third);
    assert!(poll(&mut third).is_pending());
    let fourth = fleet.admit(&live, strict(), clock::now()).await;
    assert_eq!(fourth.unwrap_err(), Refusal::Overloaded);
}

/// What could not be reached is tried elsewhere at once, whoever waits for something else.
#[tokio::test(start_paused = true)]
async fn a_retry_does_not_wait_behind_others() {
    let (fleet, _held) = full();
    fleet.reload(config("", &PAIR, "[queue]\nwaiting_max = 2\n"));
    let live = fleet.live_owned();
    rise(&fleet, &live.members[1].state);
    let strict = Ask { target: Some(Role::Speculative), light: false };
    let wait = Duration::from_secs(10);
    let waiter = Arrival { ask: strict, ..arrival(Priority::High, wait) };
    let mut waiting = Box::pin(fleet.admit(&live, waiter, clock::now()));
    assert!(poll(&mut waiting).is_pending());
    let tried = Tried::from_slice(&[live.members[0].state.id]);
    let retry = Arrival { tried, ..arrival(Priority::Low, Duration::ZERO) };
    assert_eq!(name(&fleet.admit(&live, retry, clock::now()).await.unwrap().0), "t");
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_in_time_and_by_leaving() {
    let (fleet, held) = full();
    let live = fleet.live_owned();
    let refused =
        fleet.admit(&live, arrival(Priority::Normal, Duration::from_secs(3)), clock::now()).await;
    assert_eq!(refused.unwrap_err(), Refusal::Overloaded);
    assert_eq!(fleet.waiting(), 0);
    let mut leaver =
        Box::pin(fleet.admit(&live, arrival(Priority::High, Duration::from_secs(9)), clock::now()));
    assert!(poll(&mut leaver).is_pending());
    drop(leaver);
    assert_eq!(fleet.waiting(), 0);
    // A place that was granted to somebody who left before taking it comes back.
    let mut granted =
        Box::pin(fleet.admit(&live, arrival(Priority::High, Duration::from_secs(9)), clock::now()));
    assert!(poll(&mut granted).is_pending());
    drop(held);
    assert_eq!(fleet.total(), 1);
    drop(granted);
    assert_eq!(fleet.total(), 0);
}

#[test]
fn the_mode_falls_back_when_the_load_is_gone() {
    let fleet = fleet("high = 2\nlow = 1\ndwell_ms = 1000");
    let held: Vec<_> = (0..4).map(|_| reserve(&fleet, WORK).unwrap()).collect();
    assert_eq!(fleet.mode(), Role::Throughput);
    drop(held);
    let now = clock::now();
    fleet.tick(now);
    assert_eq!(fleet.mode(), Role::Throughput);
    fleet.tick(now + Duration::from_millis(1100));
    assert_eq!(fleet.mode(), Role::Speculative);
    let spent = fleet.mode_millis(Role::Throughput, now + Duration::from_millis(1100));
    assert!((1000..1200).contains(&spent), "{spent}");
}
