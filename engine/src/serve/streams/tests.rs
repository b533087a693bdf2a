use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use tokio::sync::oneshot;

use super::*;
use crate::serve::answer;

/// Runs a request that takes `pieces` of its answer and then waits for ever; gives what ends with
/// it.
fn run(pieces: usize, until: Option<Instant>, unheard_max: Duration) -> oneshot::Receiver<()> {
    let (held, ended) = oneshot::channel();
    Streams { unheard_max }.execute(async move {
        let events = stream::iter([Ok(Bytes::from("a")), Ok(Bytes::from("b"))]);
        let mut body = Watched::new(answer::events(events.chain(stream::pending())).into_body());
        if let Some(until) = until {
            bind(until);
        }
        for _ in 0..pieces {
            body.frame().await;
        }
        std::future::pending::<()>().await;
        drop(held);
    });
    ended
}

#[tokio::test]
async fn who_takes_no_piece_is_ended() {
    let (short, long) = (Duration::from_millis(20), Duration::from_secs(3600));
    let soon = clock::now() + short;
    for (until, unheard_max) in [(None, short), (Some(soon), long), (Some(soon + long), short)] {
        assert!(run(1, until, unheard_max).await.is_err());
    }
}

#[tokio::test]
async fn who_waits_for_the_next_piece_is_not() {
    let short = Duration::from_millis(20);
    for pieces in [0, 3] {
        let ended = run(pieces, Some(clock::now()), short);
        assert!(tokio::time::timeout(10 * short, ended).await.is_err(), "{pieces}");
    }
}

#[tokio::test]
async fn a_long_piece_is_handed_over_bit_by_bit() {
    let whole = Bytes::from((0..=250).cycle().take(40_000).collect::<Vec<u8>>());
    let events = stream::iter([Ok(whole.clone()), Ok(Bytes::from("end"))]);
    let mut body = Watched::new(answer::events(events).into_body());
    let (mut lens, mut all) = (Vec::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let data = frame.expect("it goes on").into_data().expect("no trailers");
        lens.push(data.len());
        all.extend_from_slice(&data);
    }
    assert_eq!(lens, [16_384, 16_384, 7_232, 3]);
    assert_eq!(all, [&whole[..], b"end"].concat());
}
