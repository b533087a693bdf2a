use super::*;
use crate::batch::ids::TokenId;

/// Gives as many tokens, and holds as many, as it was told.
#[derive(Debug)]
struct Says(usize, u32);

impl Drafter for Says {
    fn propose(&mut self, asks: &[Ask<'_>], proposals: &mut [Proposal]) {
        assert!(!asks.is_empty(), "nobody asked");
        for proposal in proposals {
            *proposal = Proposal { given: vec![TokenId(1); self.0], held: self.1 };
        }
    }

    fn reads_tokens(&self) -> bool {
        false
    }

    fn forget(&mut self, _: SeqId) {}
}

fn check(says: Says, wanted: u32, held_max: u32, expected: (usize, u32)) {
    let mut proposer = Proposer::new(Box::new(says), Depth::always(9));
    let ask = Ask { seq: SeqId(1), tokens: &[], wanted };
    let proposals = proposer.propose(&[ask], held_max);
    assert_eq!((proposals[0].given.len(), proposals[0].held), expected);
}

#[test]
fn proposals_are_cut_to_what_was_wanted() {
    check(Says(2, 0), 3, 0, (2, 0));
    check(Says(5, 0), 3, 0, (3, 0));
    check(Says(0, 5), 3, 7, (0, 3));
    check(Says(0, 5), 4, 2, (0, 2));
    check(Says(1, 5), 4, 7, (1, 0));
    check(Says(0, 5), 0, 7, (0, 0));
}

#[test]
fn the_limit_of_a_request_holds_until_it_is_gone() {
    let mut proposer = Proposer::new(Box::new(Says(0, 0)), Depth::always(99));
    proposer.limit(SeqId(1), 0);
    proposer.limit(SeqId(2), 2);
    proposer.limit(SeqId(3), u32::MAX);
    let limits = |it: &Proposer| [1, 2, 3, 4].map(|seq| it.limit_of(SeqId(seq)));
    assert_eq!(limits(&proposer), [0, 2, DRAFTS_MAX, DRAFTS_MAX]);
    proposer.forget(SeqId(1));
    assert_eq!(limits(&proposer), [DRAFTS_MAX, 2, DRAFTS_MAX, DRAFTS_MAX]);
    assert_eq!(proposer.next_depth(1), DRAFTS_MAX);
    assert!(proposer.propose(&[], 9).is_empty());
}

#[test]
fn counts_are_by_place() {
    let mut proposer = Proposer::new(Box::new(Says(0, 0)), Depth::none());
    for (drafted, kept) in [(3, 3), (3, 1), (2, 0), (0, 0)] {
        proposer.count(drafted, kept);
    }
    let counts = proposer.counts();
    assert_eq!((counts.rounds, counts.drafted, counts.accepted), (3, 8, 4));
    assert_eq!(counts.accepted_at[..4], [2, 1, 1, 0]);
}
