//! What the loop knows of its own load. Counters count since the start and never fall.

use crate::draft::proposer::DraftCounts;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests on a lane.
    pub running: u32,
    /// Requests in the queue, those that were preempted included.
    pub waiting: u32,
    /// Running requests that have read their prompt.
    pub decoding: u32,
    pub pages_total: u32,
    /// Pages that some running request owns.
    pub pages_used: u32,
    /// Pages that nobody owns and that a prompt may still find.
    pub pages_cached: u32,
    /// Drafts that a request may get in a step at the present load.
    pub depth: u32,
    pub counts: Counts,
    pub drafts: DraftCounts,
}

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub steps: u64,
    /// Rows fed, of all kinds.
    pub rows: u64,
    /// Rows fed to read prompts, and to read texts again after a preemption.
    pub prompt_rows: u64,
    /// Prompt tokens that were looked for in the pages of earlier requests, and those found.
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub preemptions: u64,
}
