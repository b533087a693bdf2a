//! Whether an endpoint can serve, from what probes and requests found: pure.

use crate::config::HealthRules;

/// What a probe, or an attempt to connect, found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Finding {
    /// It answered that it can serve.
    Ready,
    /// It answered that it cannot serve now (5xx).
    NotReady,
    /// Nobody listens there.
    Refused,
    /// No answer in time. A busy engine does this; while tokens flow it means nothing.
    Silent { flowing: bool },
}

/// Up or down, with the counts that lead from one to the other.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Health {
    up: bool,
    /// Findings in a row that speak against the present state.
    against: u32,
    seen_up: bool,
    fell: bool,
}

impl Health {
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// It was up once and fell since: coming back is a recovery, not a start.
    pub fn has_been_down(&self) -> bool {
        self.fell
    }

    /// Takes in one finding. A definite answer counts at once, silence only `fall` times in a
    /// row; coming back takes `rise` good answers, but the first time one is enough.
    pub fn on(&mut self, finding: Finding, rules: &HealthRules) {
        match finding {
            Finding::Ready | Finding::Silent { flowing: true } if self.up => self.against = 0,
            Finding::Ready => {
                self.against += 1;
                if rules.rise <= self.against || !self.seen_up {
                    *self = Self { up: true, against: 0, seen_up: true, fell: self.fell };
                }
            }
            Finding::NotReady | Finding::Refused => self.fall(),
            Finding::Silent { .. } => {
                if self.up {
                    self.against += 1;
                    if rules.fall <= self.against {
                        self.fall();
                    }
                } else {
                    self.against = 0;
                }
            }
        }
    }

    fn fall(&mut self) {
        self.fell |= self.up;
        self.up = false;
        self.against = 0;
    }
}

#[cfg(test)]
mod tests;
