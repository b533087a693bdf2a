//! The event loop: arrivals, ends and marks in order of time, with no clock but its own.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use router::config::Role;
use router::policy::{Candidate, Policy, part};

use super::desk::{Desk, Patience, Placed};
use super::histogram::Histogram;
use super::instance::{Instance, Request};
use super::speed::Speed;
use crate::arrivals::{Arrivals, Shape};
use crate::lengths::Lengths;

/// What a router tells those whom it refuses.
const RETRY_AFTER_S: f64 = 1.0;

/// One instance as a router knows it, and how fast it is.
#[derive(Clone, Debug)]
pub struct Member {
    pub role: Role,
    pub in_flight_max: u32,
    pub speed: Speed,
}

/// `routers` equal fleets of these members, each behind `replicas` equal routers; clients meet one
/// of all routers by chance.
#[derive(Clone, Debug)]
pub struct System {
    pub policy: Policy,
    pub members: Vec<Member>,
    pub routers: u32,
    pub replicas: u32,
    pub patience: Patience,
    /// Of members that come in twos: what both keep of their speeds while both are at work.
    pub together: f64,
}

/// Who sends.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// Requests come whatever becomes of those before.
    Open(Shape),
    /// Clients that send the next request when the last has ended: `high` of them for the first
    /// half of each period, `low` for the second.
    Clients { low: u32, high: u32, hertz: f64 },
}

/// How long, how much, and which chance.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Not counted.
    pub warm_s: f64,
    /// Counted; then no more requests come, and those that are there end.
    pub seconds: f64,
    pub lengths: Lengths,
    /// A request is good when it took at most this long a token, waiting included.
    pub good_s: f64,
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of the whole run, uncounted parts included: each one arrived is ended or shed.
    pub arrived: u64,
    pub ended: u64,
    pub shed: u64,
    /// Changes of mode.
    pub switches: u64,
    /// Tokens a second in the counted time.
    pub total: f64,
    /// Seconds from arrival to end, of those that arrived in the counted time.
    pub latency_s: Histogram,
    /// Tokens a second of each of them, waiting included.
    pub pace: Histogram,
    /// Requests among them that were good.
    pub good: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrival,
    /// Something may end at this instance, if its turn is still this.
    End {
        instance: usize,
        turn: u64,
    },
    /// The number of clients rises.
    Rise,
    /// A client that was refused comes again.
    Return {
        client: u32,
    },
    WindowOpens,
    WindowCloses,
}

#[derive(Clone, Copy, Debug)]
struct Due {
    at_s: f64,
    order: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.total_cmp(&other.at_s).then(self.order.cmp(&other.order))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Runs to the end of the last request.
pub fn run(system: &System, traffic: &Traffic, rules: Rules) -> Outcome {
    let mut day = Day::new(system, rules);
    let until_s = rules.warm_s + rules.seconds;
    day.due(rules.warm_s, Event::WindowOpens);
    day.due(until_s, Event::WindowCloses);
    let mut arrivals = None;
    match traffic {
        Traffic::Open(shape) => {
            let mut times = Arrivals::new(shape.clone(), rules.seed ^ 0x5eed);
            if let Some(first) = times.next() {
                day.due(first, Event::Arrival);
            }
            arrivals = Some(times);
        }
        Traffic::Clients { low, high, hertz } => {
            day.clients = Clients { low: *low, high: *high, hertz: *hertz, idle: Vec::new() };
            (0..*high).for_each(|client| day.send(Some(client), 0.0));
            if low < high {
                day.due(1.0 / hertz, Event::Rise);
            }
        }
    }
    while let Some(Reverse(due)) = day.events.pop() {
        match due.event {
            Event::Arrival if until_s < due.at_s => {}
            Event::Arrival => {
                day.send(None, due.at_s);
                if let Some(next) = arrivals.as_mut().and_then(Iterator::next) {
                    day.due(next, Event::Arrival);
                }
            }
            Event::End { instance, turn } => day.end(instance, turn, due.at_s),
            Event::Rise if until_s < due.at_s => {}
            Event::Rise => {
                for client in std::mem::take(&mut day.clients.idle) {
                    day.send(Some(client), due.at_s);
                }
                day.due(due.at_s + 1.0 / day.clients.hertz, Event::Rise);
            }
            Event::Return { client } => day.next_of(Some(client), due.at_s),
            Event::WindowOpens => day.served_before = day.served(due.at_s),
            Event::WindowCloses => {
                day.outcome.total = (day.served(due.at_s) - day.served_before) / rules.seconds;
            }
        }
    }
    day.outcome.switches = day.desks.iter().map(Desk::switches).sum();
    day.outcome
}

#[derive(Debug, Default)]
struct Clients {
    low: u32,
    high: u32,
    hertz: f64,
    idle: Vec<u32>,
}

impl Clients {
    fn is_active(&self, client: u32, at_s: f64) -> bool {
        client < self.low || (self.low == self.high || (at_s * self.hertz).fract() < 0.5)
    }
}

struct Day {
    rules: Rules,
    events: BinaryHeap<Reverse<Due>>,
    order: u64,
    rng: fastrand::Rng,
    desks: Vec<Desk>,
    /// Desks of one fleet.
    replicas: usize,
    instances: Vec<Instance>,
    /// Instances of one fleet.
    width: usize,
    together: f64,
    clients: Clients,
    served_before: f64,
    outcome: Outcome,
}

impl Day {
    fn new(system: &System, rules: Rules) -> Self {
        let candidate = |it: &Member| Candidate {
            role: it.role,
            in_flight: 0,
            in_flight_max: part(it.in_flight_max, system.replicas),
            weight_milli: 1000,
        };
        let candidates: Vec<Candidate> = system.members.iter().map(candidate).collect();
        let policy = system.policy.clone().share(system.replicas);
        let desk = Desk::new(policy, candidates, system.patience);
        let [fleets, replicas] =
            [system.routers, system.replicas].map(|it| usize::try_from(it).expect("32 bits fit"));
        let speeds = system.members.iter().cycle().take(system.members.len() * fleets);
        Self {
            rules,
            events: BinaryHeap::new(),
            order: 0,
            rng: fastrand::Rng::with_seed(rules.seed),
            desks: vec![desk; fleets * replicas],
            replicas,
            instances: speeds.map(|it| Instance::new(it.speed.clone())).collect(),
            width: system.members.len(),
            together: system.together,
            clients: Clients::default(),
            served_before: 0.0,
            outcome: Outcome::default(),
        }
    }

    fn due(&mut self, at_s: f64, event: Event) {
        self.events.push(Reverse(Due { at_s, order: self.order, event }));
        self.order += 1;
    }

    /// One request reaches a router.
    fn send(&mut self, client: Option<u32>, now_s: f64) {
        let tokens = self.rules.lengths.sample(&mut self.rng);
        let desk = self.rng.usize(..self.desks.len());
        let request = Request { id: self.outcome.arrived, arrived_s: now_s, tokens, client, desk };
        self.outcome.arrived += 1;
        self.shed_expired(desk, now_s);
        match self.desks[desk].arrive(request, now_s) {
            Placed::At(at) => self.begin(self.instance(desk, at), request, now_s),
            Placed::Waits => {}
            Placed::Shed => self.shed(request, now_s),
        }
    }

    /// Where a desk's candidate stands among all instances.
    fn instance(&self, desk: usize, at: usize) -> usize {
        desk / self.replicas * self.width + at
    }

    fn begin(&mut self, instance: usize, request: Request, now_s: f64) {
        self.instances[instance].admit(request, now_s);
        self.meet(instance, now_s);
        self.expect_end(instance);
    }

    fn end(&mut self, instance: usize, turn: u64, now_s: f64) {
        let Some(done) = self.instances[instance].finish(turn, now_s) else { return };
        self.meet(instance, now_s);
        self.expect_end(instance);
        self.note(done, now_s);
        let desk = done.desk;
        self.desks[desk].release(instance % self.width);
        self.shed_expired(desk, now_s);
        while let Some((at, request)) = self.desks[desk].grant(now_s) {
            self.begin(self.instance(desk, at), request, now_s);
        }
        self.next_of(done.client, now_s);
    }

    /// Both of a pair slow down when the second begins, and recover when one has nothing to do.
    fn meet(&mut self, instance: usize, now_s: f64) {
        if self.together == 1.0 {
            return;
        }
        let other = instance ^ 1;
        let both = self.instances[instance].is_busy() && self.instances[other].is_busy();
        let pace = if both { self.together } else { 1.0 };
        self.instances[instance].set_pace(pace, now_s);
        if self.instances[other].set_pace(pace, now_s) {
            self.expect_end(other);
        }
    }

    fn note(&mut self, done: Request, now_s: f64) {
        self.outcome.ended += 1;
        let Rules { warm_s, seconds, good_s, .. } = self.rules;
        if done.arrived_s < warm_s || warm_s + seconds < done.arrived_s {
            return;
        }
        let latency_s = now_s - done.arrived_s;
        self.outcome.latency_s.add(latency_s);
        self.outcome.pace.add(f64::from(done.tokens) / latency_s);
        self.outcome.good += u64::from(latency_s <= good_s * f64::from(done.tokens));
    }

    fn shed(&mut self, request: Request, now_s: f64) {
        self.outcome.shed += 1;
        if let Some(client) = request.client {
            self.due(now_s + RETRY_AFTER_S, Event::Return { client });
        }
    }

    fn shed_expired(&mut self, desk: usize, now_s: f64) {
        while let Some(request) = self.desks[desk].expired(now_s) {
            self.shed(request, now_s);
        }
    }

    fn next_of(&mut self, client: Option<u32>, now_s: f64) {
        let Some(client) = client else { return };
        if self.rules.warm_s + self.rules.seconds < now_s {
            return;
        }
        if self.clients.is_active(client, now_s) {
            self.send(Some(client), now_s);
        } else {
            self.clients.idle.push(client);
        }
    }

    fn expect_end(&mut self, instance: usize) {
        if let Some((at_s, turn)) = self.instances[instance].next_end() {
            self.due(at_s, Event::End { instance, turn });
        }
    }

    fn served(&mut self, now_s: f64) -> f64 {
        self.instances.iter_mut().map(|it| it.served(now_s)).sum()
    }
}
