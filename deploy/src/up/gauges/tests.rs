use std::time::Duration;

use super::{Counts, Pace, describe};
use crate::clock;
use crate::exposition::Exposition;

#[test]
fn a_pace_is_what_was_done_between_two_looks() {
    let now = clock::now();
    let at = |seconds, tokens, rounds, accepted| {
        (now + Duration::from_secs(seconds), Counts { tokens, rounds, accepted })
    };
    let drafts = Pace::between(at(0, 100.0, 10.0, 20.0), at(2, 130.0, 20.0, 35.0));
    assert_eq!(drafts, Pace { tokens: 15.0, rounds: 10.0, accepted: 15.0 });
    let plain = Pace::between(at(1, 0.0, 0.0, 0.0), at(5, 40.0, 0.0, 0.0));
    assert_eq!(drafts.with(plain).tokens, 25.0);
    // An engine that began anew has counted less than before.
    let anew = Pace::between(at(0, 100.0, 10.0, 20.0), at(2, 5.0, 1.0, 1.0));
    assert_eq!(anew, Pace::default());
}

#[test]
fn an_engine_that_does_not_answer_has_no_counts_rather_than_none_done() {
    assert_eq!(Counts::of(&Exposition::default()), None);
    let plain = Exposition::parse("vllm:generation_tokens_total{model_name=\"m\"} 7\n");
    assert_eq!(Counts::of(&plain), Some(Counts { tokens: 7.0, rounds: 0.0, accepted: 0.0 }));
}

#[test]
fn the_line_says_what_is_where() {
    let router = Exposition::parse(
        "crossover_router_in_flight{class=\"work\",endpoint=\"speculative\"} 3\n\
         crossover_router_in_flight{class=\"light\",endpoint=\"speculative\"} 1\n\
         crossover_router_in_flight{class=\"work\",endpoint=\"throughput\"} 0\n\
         crossover_router_mode{mode=\"speculative\"} 0\n\
         crossover_router_mode{mode=\"throughput\"} 1\n",
    );
    assert_eq!(
        describe(&router, Some(Pace { tokens: 131.6, rounds: 500.0, accepted: 706.0 }), 4),
        "in flight: speculative 3, throughput 0 | new ones go to: throughput (switches above 4) \
         | 132 tok/s | 2.41 tokens a round"
    );
    assert_eq!(
        describe(&Exposition::default(), None, 4),
        "in flight: speculative ?, throughput ? | new ones go to: ? (switches above 4)"
    );
}
