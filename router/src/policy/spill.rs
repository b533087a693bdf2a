//! Fills the speculative role to a threshold; what does not fit goes to throughput.

use super::{Candidate, Reason, Verdict, Wish, least_full, place};
use crate::config::Role;

/// Keeps up to `high` requests on the speculative role at any load.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Spill {
    pub high: u32,
}

impl Spill {
    pub(super) fn place(&self, candidates: &[Candidate]) -> Verdict {
        let speculative = candidates.iter().filter(|it| it.role == Role::Speculative);
        let held: u32 = speculative.map(|it| it.in_flight).fold(0, u32::saturating_add);
        if held < self.high
            && let Some(at) = least_full(Role::Speculative, candidates)
        {
            return Verdict::Go { at, reason: Reason::Below };
        }
        // With throughput full as well, the threshold gives way before a request waits.
        place(Wish { role: Role::Throughput, reason: Reason::Overflow, strict: false }, candidates)
    }
}
