//! The texts of one request, all at once: whichever grows next comes next, until the deadline.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::clock;
use crate::runner::{EndReason, Round};
use crate::serve::answer::Refusal;
use crate::serve::choice::{Choice, Cost, Delta};
use crate::serve::record::Record;

/// Dropping it ends all its texts.
#[derive(Debug)]
pub struct Answers {
    /// Dropped before the texts, so that what it counts stands when the loop sees that they are.
    record: Record,
    texts: Vec<Growing>,
    /// How many of them each prompt has.
    n: usize,
    /// Whose turn it is to be asked first.
    turn: usize,
    pub deadline: Instant,
    pub prompt_tokens: u32,
}

#[derive(Debug)]
struct Growing {
    choice: Choice,
    /// Gone once the text has ended, which also tells the loop to drop it.
    receiver: Option<mpsc::Receiver<Round>>,
}

impl Answers {
    /// `n` texts for each prompt, one prompt's after another's.
    pub fn new(
        texts: Vec<(Choice, mpsc::Receiver<Round>)>,
        n: u32,
        prompt_tokens: u32,
        deadline: Instant,
        record: Record,
    ) -> Self {
        let grow = |(choice, it)| Growing { choice, receiver: Some(it) };
        let texts = texts.into_iter().map(grow).collect();
        let n = n.max(1) as usize;
        Self { record, texts, n, turn: 0, deadline, prompt_tokens }
    }

    /// How many texts there are, ended or not.
    pub fn count(&self) -> usize {
        self.texts.len()
    }

    pub fn seed(&self, index: usize) -> u64 {
        self.texts[index].choice.seed
    }

    /// What all texts have cost so far. A prompt counts once, and as its first text found it.
    pub fn cost(&self) -> Cost {
        self.texts.iter().enumerate().fold(Cost::default(), |sum, (index, it)| {
            let cost = it.choice.cost;
            let is_first = index.is_multiple_of(self.n);
            Cost {
                tokens: sum.tokens + cost.tokens,
                accepted: sum.accepted + cost.accepted,
                rejected: sum.rejected + cost.rejected,
                cached: sum.cached + if is_first { cost.cached } else { 0 },
            }
        })
    }

    /// The next addition to a text, with the text's number; `None` when all have ended.
    pub async fn next(&mut self) -> Result<Option<(usize, Delta)>, Refusal> {
        // A client that reads too slowly is out of time as well, whatever there is to read.
        if self.deadline <= clock::now() {
            return Err(self.expire());
        }
        let deadline = tokio::time::Instant::from_std(self.deadline);
        let round = poll_fn(|cx| self.poll_round(cx));
        let Ok(round) = tokio::time::timeout_at(deadline, round).await else {
            return Err(self.expire());
        };
        let Some((index, round)) = round else {
            self.record.complete(self.cost(), self.prompt_tokens);
            return Ok(None);
        };
        let text = &mut self.texts[index];
        // A channel that ends before its text was told to end is the loop's failure.
        let Some(round) = round else {
            self.record.refuse(&Refusal::Failed);
            return Err(Refusal::Failed);
        };
        if round.end == Some(EndReason::Expired) {
            return Err(self.expire());
        }
        self.record.round(text.choice.times, &round);
        let delta = text.choice.take(round);
        if let Some(ending) = delta.finish {
            text.receiver = None;
            self.record.ended(&text.choice, ending);
        }
        Ok(Some((index, delta)))
    }

    fn expire(&mut self) -> Refusal {
        let refusal = Refusal::Expired { after: self.deadline - self.record.arrival };
        self.record.refuse(&refusal);
        refusal
    }

    fn poll_round(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Option<Round>)>> {
        let count = self.texts.len();
        let mut is_open = false;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let Some(receiver) = &mut self.texts[index].receiver else { continue };
            is_open = true;
            if let Poll::Ready(round) = receiver.poll_recv(cx) {
                self.turn = index + 1;
                return Poll::Ready(Some((index, round)));
            }
        }
        if is_open { Poll::Pending } else { Poll::Ready(None) }
    }
}
