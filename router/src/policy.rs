//! Which endpoint takes the next request: pure, from a snapshot of the fleet.

use std::time::Duration;

use crate::config::Role;

/// What a policy may know of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    /// The role that the client asked for.
    pub target: Option<Role>,
    /// Asks for something (GET, HEAD, OPTIONS) rather than for tokens: it is counted on its
    /// endpoint, but neither moves the mode nor needs a free slot.
    pub light: bool,
}

/// An endpoint that could serve now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Candidate {
    pub role: Role,
    /// Requests for tokens that it holds.
    pub in_flight: u32,
    /// How many it may hold at this moment.
    pub in_flight_max: u32,
    pub weight_milli: u32,
}

impl Candidate {
    fn has_room(&self) -> bool {
        self.in_flight < self.in_flight_max
    }

    /// Load after one more request, against its weight; only comparable within a fleet.
    fn fullness(&self) -> u64 {
        (u64::from(self.in_flight) + 1) * 1_000_000 / u64::from(self.weight_milli.max(1))
    }
}

/// The fleet at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Requests for tokens in flight in the whole fleet, without the one to be placed.
    pub total: u32,
    pub mode: Role,
    /// How long it has been the mode.
    pub in_mode: Duration,
    pub candidates: &'a [Candidate],
}

/// Why an endpoint was chosen; a label of metrics and a response header.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Reason {
    /// Load is at or below the threshold.
    Below,
    /// Load is above it.
    Above,
    /// The request named the role.
    Override,
    /// The wanted role has no endpoint that can serve.
    Failover,
    /// The wanted role is full.
    Overflow,
    /// The configuration names the role.
    Pinned,
    /// One more request adds most there.
    Marginal,
    /// A light request, which goes where the mode points.
    Light,
}

impl Reason {
    pub const ALL: [Self; 8] = [
        Self::Below,
        Self::Above,
        Self::Override,
        Self::Failover,
        Self::Overflow,
        Self::Pinned,
        Self::Marginal,
        Self::Light,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Self::Below => "below",
            Self::Above => "above",
            Self::Override => "override",
            Self::Failover => "failover",
            Self::Overflow => "overflow",
            Self::Pinned => "pinned",
            Self::Marginal => "marginal",
            Self::Light => "light",
        }
    }
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// To this candidate.
    Go { at: usize, reason: Reason },
    /// Nowhere now: what could serve it is full.
    Full,
    /// Nowhere: nothing can serve.
    Down,
}

/// The decision, and the mode that holds from now on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    pub verdict: Verdict,
    pub mode: Role,
}

/// The named policies.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    Switch(switch::Switch),
    Spill(spill::Spill),
    Marginal(marginal::Marginal),
    Pin(Role),
}

pub mod marginal;
pub mod spill;
pub mod switch;

/// The role a policy would like, and why; `strict` waits for it rather than overflow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Wish {
    role: Role,
    reason: Reason,
    strict: bool,
}

impl Policy {
    pub const NAMES: [&'static str; 4] = ["switch", "spill", "marginal", "pin"];

    pub fn name(&self) -> &'static str {
        match self {
            Self::Switch(_) => Self::NAMES[0],
            Self::Spill(_) => Self::NAMES[1],
            Self::Marginal(_) => Self::NAMES[2],
            Self::Pin(_) => Self::NAMES[3],
        }
    }

    /// What one of so many equal routers goes by. Each sees its part of the requests; that the
    /// others hold as much is taken for granted.
    pub fn share(self, replicas: u32) -> Self {
        let part = |count| part(count, replicas);
        match self {
            Self::Switch(it) => {
                Self::Switch(switch::Switch { high: part(it.high), low: part(it.low), ..it })
            }
            Self::Spill(it) => Self::Spill(spill::Spill { high: part(it.high) }),
            Self::Marginal(it) => Self::Marginal(marginal::Marginal {
                speculative: it.speculative.share(replicas),
                throughput: it.throughput.share(replicas),
                together: it.together,
            }),
            Self::Pin(role) => Self::Pin(role),
        }
    }

    /// The thresholds, where there are any: (high, low).
    pub fn thresholds(&self) -> Option<(u32, u32)> {
        match self {
            Self::Switch(it) => Some((it.high, it.low)),
            Self::Spill(it) => Some((it.high, it.high)),
            Self::Marginal(_) | Self::Pin(_) => None,
        }
    }

    /// The mode that holds while `total` requests are in flight and none arrives.
    pub fn mode(&self, total: u32, mode: Role, in_mode: Duration) -> Role {
        match self {
            Self::Switch(it) => it.mode(total, mode, in_mode),
            Self::Spill(_) | Self::Marginal(_) => Role::Speculative,
            Self::Pin(role) => *role,
        }
    }

    /// Places one request.
    pub fn decide(&self, ask: Ask, load: &Load<'_>) -> Decision {
        if ask.light {
            let role = ask.target.unwrap_or(load.mode);
            return Decision { verdict: place_light(role, load.candidates), mode: load.mode };
        }
        let mode = self.mode(load.total.saturating_add(1), load.mode, load.in_mode);
        let verdict = match (ask.target, self) {
            (Some(role), _) => {
                place(Wish { role, reason: Reason::Override, strict: true }, load.candidates)
            }
            (None, Self::Switch(it)) => place(it.wish(mode, load.total), load.candidates),
            (None, Self::Spill(it)) => it.place(load.candidates),
            (None, Self::Marginal(it)) => it.place(load.candidates),
            (None, Self::Pin(role)) => {
                let wish = Wish { role: *role, reason: Reason::Pinned, strict: true };
                place(wish, load.candidates)
            }
        };
        Decision { verdict, mode }
    }
}

/// One router's part of a count that so many share: rounded down, so that all of them together stay
/// within it, but something of everything.
pub fn part(count: u32, replicas: u32) -> u32 {
    (count / replicas).max(count.min(1))
}

/// The least full candidate of a role that has room.
fn least_full(role: Role, candidates: &[Candidate]) -> Option<usize> {
    let fits = |it: &(usize, &Candidate)| it.1.role == role && it.1.has_room();
    let least = candidates.iter().enumerate().filter(fits).min_by_key(|it| it.1.fullness());
    least.map(|it| it.0)
}

fn place(wish: Wish, candidates: &[Candidate]) -> Verdict {
    if let Some(at) = least_full(wish.role, candidates) {
        return Verdict::Go { at, reason: wish.reason };
    }
    if candidates.is_empty() {
        return Verdict::Down;
    }
    let is_down = !candidates.iter().any(|it| it.role == wish.role);
    if wish.strict && !is_down {
        return Verdict::Full;
    }
    let reason = if is_down { Reason::Failover } else { Reason::Overflow };
    match least_full(wish.role.other(), candidates) {
        Some(at) => Verdict::Go { at, reason },
        None => Verdict::Full,
    }
}

/// Light requests take no slot, so room does not matter to them.
fn place_light(role: Role, candidates: &[Candidate]) -> Verdict {
    let of = |role| {
        let members = candidates.iter().enumerate().filter(move |it| it.1.role == role);
        members.min_by_key(|it| it.1.fullness()).map(|it| it.0)
    };
    match (of(role), of(role.other())) {
        (Some(at), _) => Verdict::Go { at, reason: Reason::Light },
        (None, Some(at)) => Verdict::Go { at, reason: Reason::Failover },
        (None, None) => Verdict::Down,
    }
}

#[cfg(test)]
mod tests;
