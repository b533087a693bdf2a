//! The texts of one request, all at once: whichever grows next comes next, until the deadline.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::mpsc;

use crate::runner::Round;
use crate::serve::answer::Refusal;
use crate::serve::choice::{Choice, Cost, Delta};
use crate::serve::record::Record;

/// Dropping it ends all its texts.
#[derive(Debug)]
pub struct Answers {
    texts: Vec<Growing>,
    /// Whose turn it is to be asked first.
    turn: usize,
    deadline: Instant,
    pub prompt_tokens: u32,
    record: Record,
}

#[derive(Debug)]
struct Growing {
    choice: Choice,
    /// Gone once the text has ended, which also tells the loop to drop it.
    receiver: Option<mpsc::Receiver<Round>>,
}

impl Answers {
    pub fn new(
        texts: Vec<(Choice, mpsc::Receiver<Round>)>,
        prompt_tokens: u32,
        deadline: Instant,
        record: Record,
    ) -> Self {
        let grow = |(choice, it)| Growing { choice, receiver: Some(it) };
        let texts = texts.into_iter().map(grow).collect();
        Self { texts, turn: 0, deadline, prompt_tokens, record }
    }

    /// How many texts there are, ended or not.
    pub fn count(&self) -> usize {
        self.texts.len()
    }

    pub fn seed(&self, index: usize) -> u64 {
        self.texts[index].choice.seed
    }

    /// What all texts have cost so far.
    pub fn cost(&self) -> Cost {
        self.texts.iter().fold(Cost::default(), |sum, it| {
            let cost = it.choice.cost;
            Cost {
                tokens: sum.tokens + cost.tokens,
                accepted: sum.accepted + cost.accepted,
                rejected: sum.rejected + cost.rejected,
                cached: sum.cached + cost.cached,
            }
        })
    }

    /// The next addition to a text, with the text's number; `None` when all have ended.
    pub async fn next(&mut self) -> Result<Option<(usize, Delta)>, Refusal> {
        let deadline = tokio::time::Instant::from_std(self.deadline);
        let round = poll_fn(|cx| self.poll_round(cx));
        let Ok(round) = tokio::time::timeout_at(deadline, round).await else {
            let refusal = Refusal::Expired { after: self.deadline - self.record.arrival };
            self.record.refuse(&refusal);
            return Err(refusal);
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
        self.record.round(text.choice.times, &round);
        let delta = text.choice.take(round);
        if let Some(ending) = delta.finish {
            text.receiver = None;
            self.record.ended(&text.choice, ending);
        }
        Ok(Some((index, delta)))
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
