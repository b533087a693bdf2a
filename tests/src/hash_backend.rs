//! A backend that notices every mistake with pages, lanes and plans: its model is a hash.
//!
//! It writes each row to the slot that the page table gives and chooses by reading all slots
//! before it. A page shared by mistake, a stale draft, a lost row or a lane of another changes the
//! text or stops the test. Plans are run when they are submitted, which is what "in order" means,
//! but their choices are kept back until they are collected.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::backend::{Backend, BackendError, Shape};
use engine::batch::ids::{PageId, SeqId, TokenId};
use engine::batch::plan::{Entry, StepChoices, StepPlan, TokenLogprobs, accept};
use engine::batch::sampling::choose;

use crate::hash_model::{Text, past};
use crate::rng::mix;

#[derive(Debug)]
pub struct HashBackend {
    shape: Shape,
    /// How many of a hundred of its own guesses are right.
    right_percent: u32,
    slots: Vec<Option<Slot>>,
    lanes: Vec<Option<Lane>>,
    plans: u64,
    ready: VecDeque<StepChoices>,
    rows_fed: Arc<AtomicU64>,
}

/// What one row left in a page.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Slot {
    position: u32,
    token: TokenId,
    /// The text up to and with `token`, as it was read when the row was fed.
    text: Text,
}

/// What the backend remembers of a lane's last entry.
#[derive(Debug)]
struct Lane {
    seq: SeqId,
    plan: u64,
    /// Where the next own token stands.
    end: u32,
    /// The token that stands there, if that entry chose one.
    chosen: Option<TokenId>,
    drafts: u32,
    /// The text up to `end`: a draft head would start from here.
    text: Text,
}

/// An entry with what the backend alone knows of it.
#[derive(Debug)]
struct Run<'a> {
    entry: &'a Entry,
    pages: &'a [PageId],
    start: u32,
    own: Vec<TokenId>,
    given: Vec<TokenId>,
    masks: Vec<&'a [u32]>,
}

impl HashBackend {
    pub fn new(shape: Shape, right_percent: u32) -> Self {
        Self {
            shape,
            right_percent,
            slots: vec![None; (shape.pages * shape.page_tokens) as usize],
            lanes: (0..shape.lanes).map(|_| None).collect(),
            plans: 0,
            ready: VecDeque::new(),
            rows_fed: Arc::default(),
        }
    }

    /// Counts the rows it was fed, also after the engine owns it.
    pub fn rows_fed(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.rows_fed)
    }

    fn index(&self, pages: &[PageId], position: u32) -> usize {
        let page = pages[(position / self.shape.page_tokens) as usize];
        (page.0 * self.shape.page_tokens + position % self.shape.page_tokens) as usize
    }

    fn read(&self, pages: &[PageId], position: u32) -> Slot {
        let slot = self.slots[self.index(pages, position)];
        let slot = slot.expect("a slot is written before it is read");
        assert_eq!(slot.position, position, "a slot holds another position");
        slot
    }

    /// The text before `position`.
    fn text(&self, pages: &[PageId], position: u32) -> Text {
        position.checked_sub(1).map_or(Text::default(), |last| self.read(pages, last).text)
    }

    fn write(&mut self, pages: &[PageId], position: u32, token: TokenId) {
        let text = self.text(pages, position).then(token);
        let index = self.index(pages, position);
        self.slots[index] = Some(Slot { position, token, text });
    }

    /// Where the entry starts, and the token there if the host does not know it.
    fn enter(&self, entry: &Entry, pages: &[PageId], own: &[TokenId]) -> (u32, Option<TokenId>) {
        let lane = self.lanes[entry.lane as usize].as_ref();
        let is_unread = |lane: &Lane| lane.plan + 1 == self.plans && !self.ready.is_empty();
        if entry.chained {
            let lane = lane.expect("a chained entry continues one");
            assert_eq!(lane.seq, entry.seq, "a lane changed hands");
            assert!(is_unread(lane), "the host knows what it chains to");
            let latest = entry.start + lane.drafts;
            assert!(entry.start <= lane.end && lane.end <= latest, "chained to another place");
            assert!(entry.fed == 1 && !entry.masked);
            assert_eq!(self.text(pages, lane.end), lane.text, "a lane holds another's text");
            return (lane.end, Some(lane.chosen.expect("only a choice can be chained to")));
        }
        let continued = lane.filter(|it| it.seq == entry.seq && it.end == entry.start);
        if let Some(lane) = continued {
            assert_eq!(self.text(pages, lane.end), lane.text, "a lane holds another's text");
            if let Some(chosen) = lane.chosen {
                assert!(!is_unread(lane), "the host cannot know this token");
                assert_eq!(own[0], chosen, "the host fed another token than was chosen");
            }
        } else {
            let is_aligned = entry.start.is_multiple_of(self.shape.page_tokens);
            assert!(is_aligned, "a lane starts from whole pages");
        }
        let chose = continued.is_some_and(|it| it.chosen.is_some());
        assert!(entry.drafts() == 0 || chose && entry.fed == 1, "nothing to draft from");
        (entry.start, None)
    }

    fn run(&mut self, run: &Run<'_>, done: &mut StepChoices) {
        let Run { entry, pages, start, .. } = *run;
        for (position, &token) in (start..).zip(&run.own) {
            self.write(pages, position, token);
        }
        let mut end = start + entry.fed;
        let mut kept = Vec::new();
        if entry.chooses {
            let (drafts, chosen, logprobs) = self.verify(run, end);
            kept.extend_from_slice(accept(&drafts, &chosen));
            end += u32::try_from(kept.len()).expect("few") - 1;
            done.logprobs.extend(logprobs.into_iter().take(kept.len()));
        }
        done.counts.push(u32::try_from(kept.len()).expect("few"));
        done.tokens.extend_from_slice(&kept);
        self.lanes[entry.lane as usize] = Some(Lane {
            seq: entry.seq,
            plan: self.plans,
            end,
            chosen: kept.last().copied(),
            drafts: entry.drafts(),
            text: self.text(pages, end),
        });
    }

    /// The drafts after `end`, and the choices after the own rows and after each draft.
    fn verify(
        &mut self,
        run: &Run<'_>,
        end: u32,
    ) -> (Vec<TokenId>, Vec<TokenId>, Vec<TokenLogprobs>) {
        let (mut drafts, mut chosen, mut logprobs) = (Vec::new(), Vec::new(), Vec::new());
        for (at, position) in (0..=run.entry.drafts() as usize).zip(end..) {
            let (token, report) = self.choose(run, position, run.masks.get(at).copied());
            chosen.push(token);
            logprobs.extend(report);
            if at < run.entry.drafts() as usize {
                let draft = run.given.get(at).copied();
                let draft = draft.unwrap_or_else(|| self.guess(run.entry.seq, position, token));
                self.write(run.pages, position, draft);
                drafts.push(draft);
            }
        }
        (drafts, chosen, logprobs)
    }

    /// The choice for `position`, from all that stands before it in the pages.
    fn choose(
        &self,
        run: &Run<'_>,
        position: u32,
        mask: Option<&[u32]>,
    ) -> (TokenId, Option<TokenLogprobs>) {
        let mut text = Text::default();
        let mut before = Vec::new();
        for slot in (0..position).map(|at| self.read(run.pages, at)) {
            text = text.then(slot.token);
            assert_eq!(slot.text, text, "a slot was computed after another text");
            before.push(slot.token);
        }
        assert!(mask.is_none_or(|it| it.iter().any(|word| *word != 0)), "a mask allows something");
        let past = past(&before, run.entry.outputs_start as usize);
        choose(&mut text.logits(self.shape.vocab), &run.entry.sampling, past, mask)
    }

    fn guess(&self, seq: SeqId, position: u32, truth: TokenId) -> TokenId {
        let luck = mix(mix(seq.0) ^ u64::from(position)) % 100;
        let is_right = luck < u64::from(self.right_percent);
        if is_right { truth } else { TokenId((truth.0 + 1) % self.shape.vocab) }
    }

    /// No lane twice, no page of another, and not one page more than the longest outcome needs.
    fn check(&self, plan: &StepPlan) {
        let mut lanes: Vec<u32> = plan.entries.iter().map(|it| it.lane).collect();
        lanes.sort_unstable();
        assert!(lanes.windows(2).all(|pair| pair[0] < pair[1]), "a lane has one entry in a plan");
        let mut named: BTreeMap<PageId, u32> = BTreeMap::new();
        for entry in &plan.entries {
            for page in &plan.pages[entry.pages.clone()] {
                *named.entry(*page).or_default() += 1;
            }
        }
        for entry in &plan.entries {
            let pages = &plan.pages[entry.pages.clone()];
            let written = &pages[(entry.start / self.shape.page_tokens) as usize..];
            assert!(written.iter().all(|it| named[it] == 1), "a page is written and shared");
            let lane = self.lanes[entry.lane as usize].as_ref();
            let slack = lane.filter(|_| entry.chained).map_or(0, |it| it.drafts);
            let slots = entry.start + slack + entry.rows();
            let need = slots.div_ceil(self.shape.page_tokens) as usize;
            assert!(need <= pages.len(), "the longest outcome has no room");
            assert!(entry.masked || pages.len() == need, "a page is held that no row can reach");
        }
        let rows: u32 = plan.entries.iter().map(Entry::rows).sum();
        assert!(rows <= self.shape.rows_max, "more rows than a step has");
        self.rows_fed.fetch_add(u64::from(rows), Ordering::Relaxed);
    }
}

impl Backend for HashBackend {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        self.plans += 1;
        self.check(plan);
        let mut rows = plan.rows.iter().copied();
        let mut masks = plan.masks.chunks_exact(self.shape.vocab.div_ceil(32) as usize);
        let mut done = StepChoices::default();
        for entry in &plan.entries {
            assert!(0 < entry.fed && entry.held <= self.shape.held_max);
            assert!(!entry.masked || entry.held == 0, "a mask needs the drafts before it");
            let pages = &plan.pages[entry.pages.clone()];
            let known = if entry.chained { 0 } else { entry.fed };
            let mut own: Vec<TokenId> = rows.by_ref().take(known as usize).collect();
            let (start, unknown) = self.enter(entry, pages, &own);
            own.extend(unknown);
            let given = rows.by_ref().take(entry.given as usize).collect();
            let masked = if entry.masked { entry.choices_max() as usize } else { 0 };
            let masks = masks.by_ref().take(masked).collect();
            self.run(&Run { entry, pages, start, own, given, masks }, &mut done);
        }
        assert!(rows.next().is_none() && masks.next().is_none(), "rows or masks without an entry");
        self.ready.push_back(done);
        assert!(self.ready.len() <= 1 + self.shape.ahead_max as usize, "too many plans in flight");
        Ok(())
    }

    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        *choices = self.ready.pop_front().expect("only what was submitted is collected");
        Ok(())
    }
}
