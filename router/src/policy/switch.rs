//! All new requests go to one role: below a threshold speculative, above it throughput.

use std::time::Duration;

use super::{Reason, Wish};
use crate::config::Role;

/// The mode changes upwards when more than `high` are in flight, downwards at `low` or fewer,
/// and never twice within `dwell`. Running requests stay where they are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Switch {
    pub high: u32,
    /// At most `high`.
    pub low: u32,
    pub dwell: Duration,
}

impl Switch {
    /// The mode for `total` requests in flight, the arriving one among them.
    pub(super) fn mode(&self, total: u32, mode: Role, in_mode: Duration) -> Role {
        let wanted = match mode {
            Role::Speculative if self.high < total => Role::Throughput,
            Role::Throughput if total <= self.low => Role::Speculative,
            unchanged => unchanged,
        };
        if in_mode < self.dwell { mode } else { wanted }
    }

    /// Above the threshold a request goes to throughput even while the dwell holds the mode: the
    /// speculative side never takes more than its threshold because of a rule against flapping.
    pub(super) fn wish(&self, mode: Role, total_before: u32) -> Wish {
        let is_above = mode == Role::Throughput || self.high <= total_before;
        if is_above {
            Wish { role: Role::Throughput, reason: Reason::Above, strict: false }
        } else {
            Wish { role: Role::Speculative, reason: Reason::Below, strict: false }
        }
    }
}
