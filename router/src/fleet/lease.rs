//! One request in flight: the only thing that touches a count, and drop is the only way back.

use std::sync::Arc;
use std::time::Instant;

use super::Fleet;
use super::breaker::Report;
use super::endpoint::Member;
use crate::clock;
use crate::policy::Reason;

/// A place on an endpoint, from the decision until the last byte of the answer.
#[derive(Debug)]
pub struct Lease {
    fleet: Arc<Fleet>,
    member: Arc<Member>,
    reason: Reason,
    light: bool,
    trial: bool,
    reported: bool,
}

impl Lease {
    /// `member` has been claimed, and the tally taken unless `light`.
    pub(super) fn new(
        fleet: Arc<Fleet>,
        member: Arc<Member>,
        reason: Reason,
        light: bool,
        trial: bool,
    ) -> Self {
        Self { fleet, member, reason, light, trial, reported: false }
    }

    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    pub fn reason(&self) -> Reason {
        self.reason
    }

    pub fn is_light(&self) -> bool {
        self.light
    }

    /// Says how the endpoint did; the first word counts. Light requests say nothing: an engine that
    /// fails at tokens still lists its models.
    pub fn report(&mut self, report: Report, now: Instant) {
        if !self.reported && !self.light {
            self.reported = true;
            let live = self.fleet.live();
            self.member.state.report(report, self.trial, &live.config.breaker, now);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.trial {
            self.report(Report::Unknown, clock::now());
        }
        if self.light {
            self.member.state.unclaim_light();
        } else {
            self.member.state.unclaim();
            self.fleet.tally().give();
            self.fleet.wake();
        }
    }
}
