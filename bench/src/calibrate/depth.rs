//! Finds how many drafts are best at each load: the table that the engine's K policy reads.

use std::fmt::Write as _;

use router::config::Role;

use super::search::some_tokens;
use crate::stats;

/// Runs the speculative instance with a number of drafts.
pub trait Drafting {
    /// Total tokens a second with `in_flight` requests of `drafts` each; run `repeat` of every
    /// depth has the same prompts.
    fn total_with(
        &mut self,
        drafts: u32,
        in_flight: u32,
        repeat: u32,
    ) -> impl Future<Output = Result<f64, String>> + Send;
}

/// Lines of (decoding requests at most, drafts): loads rise, drafts fall, none beyond the last.
pub type Table = Vec<(u32, u32)>;

/// Looks at the loads of `ladder` in order, at each with no more drafts than were best before,
/// and ends where none are best.
pub async fn table<D: Drafting>(
    drafting: &mut D,
    ladder: &[u32],
    drafts_max: u32,
    repeats: u32,
) -> Result<Table, String> {
    let mut table = Table::new();
    let mut most = drafts_max;
    for &in_flight in ladder {
        let mut totals = vec![Vec::new(); most as usize + 1];
        for repeat in 0..repeats {
            for (drafts, totals) in (0..).zip(&mut totals) {
                let total = drafting.total_with(drafts, in_flight, repeat).await?;
                totals.push(some_tokens(Role::Speculative, in_flight, total)?);
            }
        }
        most = best(&totals);
        if most == 0 {
            break;
        }
        match table.last_mut() {
            Some((bound, drafts)) if *drafts == most => *bound = in_flight,
            _ => table.push((in_flight, most)),
        }
    }
    Ok(table)
}

/// The depth with the highest median; of equal ones the least.
fn best(totals: &[Vec<f64>]) -> u32 {
    let mut best = (0, f64::MIN);
    for (drafts, totals) in (0..).zip(totals) {
        let total = stats::median(totals).unwrap_or(0.0);
        if best.1 < total {
            best = (drafts, total);
        }
    }
    best.0
}

/// One sentence for a person.
pub fn sentence(table: &[(u32, u32)]) -> String {
    let mut text = String::from("Drafts:");
    for (bound, drafts) in table {
        write!(text, " {drafts} up to {bound} in flight,").expect("a string takes all");
    }
    text + if table.is_empty() { " none at any load." } else { " none beyond." }
}

#[cfg(test)]
mod tests;
