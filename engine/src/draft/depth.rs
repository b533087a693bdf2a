//! How many drafts a request gets in a step: fewer the more requests decode, and never a flutter.

/// Rounds that a depth stays at least.
const DWELL_ROUNDS: u32 = 16;

/// A table from load to depth, and where in it the engine stands.
///
/// The load is the number of *decoding* requests, since each of them multiplies its rows by
/// 1 + depth; prompts do not. A level is left as soon as its bound is passed and entered from above
/// a quarter below it, and no level is left before `DWELL_ROUNDS` rounds. Rounds, not time: the
/// loop has no clock.
#[derive(Clone, Debug)]
pub struct Depth {
    /// Bounds rise; beyond the last there are no drafts.
    levels: Vec<Level>,
    at: usize,
    rounds: u32,
    switches: Switches,
}

/// Up to `decoding_max` decoding requests get `drafts` drafts each.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    decoding_max: u32,
    drafts: u32,
}

/// How often the depth rose and fell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Switches {
    pub up: u64,
    pub down: u64,
}

/// A depth table is not in order of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOutOfOrder {
    /// The first line whose `decoding_max` is not above that of the line before.
    pub line: usize,
}

impl Depth {
    /// No drafts at any load.
    pub fn none() -> Self {
        Self::of(Vec::new())
    }

    /// `drafts` at any load.
    pub fn always(drafts: u32) -> Self {
        Self::of(vec![Level { decoding_max: u32::MAX, drafts }])
    }

    /// `drafts` while at most `decoding_max` requests decode, then none.
    pub fn until(decoding_max: u32, drafts: u32) -> Self {
        Self::of(vec![Level { decoding_max, drafts }])
    }

    /// Lines of (decoding requests at most, drafts), rising; beyond the last none.
    pub fn table(lines: &[(u32, u32)]) -> Result<Self, TableOutOfOrder> {
        if let Some(line) = lines.windows(2).position(|pair| pair[1].0 <= pair[0].0) {
            return Err(TableOutOfOrder { line: line + 1 });
        }
        let level = |&(decoding_max, drafts): &(u32, u32)| Level { decoding_max, drafts };
        Ok(Self::of(lines.iter().map(level).collect()))
    }

    fn of(levels: Vec<Level>) -> Self {
        Self { levels, at: 0, rounds: DWELL_ROUNDS, switches: Switches::default() }
    }

    /// The depth now.
    pub fn drafts(&self) -> u32 {
        self.drafts_at(self.at)
    }

    pub fn switches(&self) -> Switches {
        self.switches
    }

    /// The depth of a step in which `decoding` requests decode.
    pub fn next(&mut self, decoding: u32) -> u32 {
        if decoding == 0 {
            // Nobody is there to notice a switch, so the next comer finds the right depth at once.
            self.rounds = DWELL_ROUNDS;
            return self.drafts();
        }
        let to = self.level(decoding);
        if to == self.at || self.rounds < DWELL_ROUNDS {
            self.rounds = self.rounds.saturating_add(1);
            return self.drafts();
        }
        let before = self.drafts();
        self.at = to;
        self.rounds = 1;
        self.switches.up += u64::from(before < self.drafts());
        self.switches.down += u64::from(self.drafts() < before);
        self.drafts()
    }

    fn level(&self, decoding: u32) -> usize {
        let bounds = self.levels.iter().map(|it| it.decoding_max);
        let lower = |bound: u32| bound - bound / 4;
        let by_load = bounds.clone().position(|it| decoding <= it).unwrap_or(self.levels.len());
        if self.at <= by_load {
            return by_load;
        }
        bounds.take(self.at).position(|it| decoding <= lower(it)).unwrap_or(self.at)
    }

    fn drafts_at(&self, level: usize) -> u32 {
        self.levels.get(level).map_or(0, |it| it.drafts)
    }
}

#[cfg(test)]
mod tests;
