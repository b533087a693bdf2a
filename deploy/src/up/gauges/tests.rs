use super::{Counts, describe, rates};
use crate::exposition::Exposition;

#[test]
fn rates_are_differences() {
    let before = [Counts { tokens: 100.0, rounds: 10.0, accepted: 20.0 }, Counts::default()];
    let now = [
        Counts { tokens: 130.0, rounds: 20.0, accepted: 35.0 },
        Counts { tokens: 20.0, ..Counts::default() },
    ];
    assert_eq!(rates(2.0, &before, &now), (25.0, Some(2.5)));
    assert_eq!(rates(2.0, &now, &now), (0.0, None));
    // An engine that began anew has counted less than before.
    assert_eq!(rates(1.0, &now, &before).0, 0.0);
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
        describe(&router, Some((131.6, Some(2.412))), 4),
        "in flight: speculative 3, throughput 0 | new ones go to: throughput (switches above 4) \
         | 132 tok/s | 2.41 tokens a round"
    );
    assert_eq!(
        describe(&Exposition::default(), None, 4),
        "in flight: speculative ?, throughput ? | new ones go to: ? (switches above 4)"
    );
}
