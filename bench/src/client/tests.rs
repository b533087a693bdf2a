use std::time::Duration;

use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Client, Events, told};
use crate::clock::Clock;
use crate::load::open::tests::ask;
use crate::sample::{Outcome, Sample};
use crate::target;

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const STREAM: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// Writes the pieces to whoever asks, a moment apart, as often as it is asked on a connection; ends
/// the connection after an empty one.
async fn server(pieces: Vec<String>) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let pieces = pieces.clone();
            connections.spawn(async move {
                let mut head = vec![0; 8192];
                while stream.read(&mut head).await.is_ok_and(|it| it != 0) {
                    for piece in &pieces {
                        if piece.is_empty() {
                            return;
                        }
                        sleep(Duration::from_millis(2)).await;
                        stream.write_all(piece.as_bytes()).await.unwrap();
                    }
                }
            });
        }
    });
    (url, tasks)
}

/// The pieces of a good head and a body in chunks, its end by itself.
fn chunks(events: &[&str]) -> Vec<String> {
    let chunk = |it: &&str| format!("{:x}\r\n{it}\r\n", it.len());
    let end = "0\r\n\r\n".to_owned();
    [STREAM.to_owned()].into_iter().chain(events.iter().map(chunk)).chain([end]).collect()
}

async fn sample(pieces: Vec<String>) -> Sample {
    let (url, _server) = server(pieces).await;
    let target = target::parse(&format!("a={url}")).unwrap();
    Client::new(Clock::start()).run(&target, &ask(0), 0.0).await
}

#[tokio::test]
async fn only_a_stream_that_ends_well_and_is_counted_is_done() {
    let error = "data: {\"error\":{\"message\":\"out of memory\"}}\n\n";
    let cut = |events: &[&str]| {
        let mut pieces = chunks(events);
        *pieces.last_mut().unwrap() = String::new();
        pieces
    };
    for (pieces, outcome, tokens) in [
        (chunks(&[TEXT, USAGE, DONE]), Outcome::Done, 7),
        (chunks(&[TEXT, TEXT, DONE]), Outcome::Broken, 0),
        (chunks(&[TEXT, error, DONE]), Outcome::Broken, 0),
        (chunks(&[TEXT, USAGE, error, DONE]), Outcome::Broken, 7),
        (chunks(&[TEXT, USAGE]), Outcome::Broken, 7),
        (chunks(&[TEXT, "data: <html>\n\n", USAGE, DONE]), Outcome::Broken, 0),
        (cut(&[TEXT]), Outcome::Broken, 0),
        (cut(&[TEXT, USAGE, DONE]), Outcome::Done, 7),
    ] {
        let found = sample(pieces.clone()).await;
        assert_eq!((found.outcome, found.tokens), (outcome, tokens), "{pieces:?}");
        assert!(found.first_ms.unwrap() <= found.end_ms);
    }
}

#[tokio::test]
async fn thoughts_are_text_too() {
    let thought = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"}}]}\n\n";
    assert!(sample(chunks(&[thought, USAGE, DONE])).await.first_ms.is_some());
}

#[tokio::test]
async fn a_redirection_is_a_failure_and_is_not_followed() {
    let (url, _server) = server(chunks(&[TEXT, USAGE, DONE])).await;
    let head = format!("HTTP/1.1 307 No\r\nlocation: {url}/\r\ncontent-length: 0\r\n\r\n");
    let found = sample(vec![head]).await;
    assert_eq!((found.outcome, found.status), (Outcome::Error, 307));
}

/// The end of the body comes after the end mark; who did not wait for it would have to connect
/// anew, and would look like a client that gave up.
#[tokio::test]
async fn a_connection_is_kept_from_request_to_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        // One connection is all that is ever taken.
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 8192];
        while stream.read(&mut head).await.unwrap() != 0 {
            for piece in chunks(&[TEXT, USAGE, DONE]) {
                sleep(Duration::from_millis(2)).await;
                stream.write_all(piece.as_bytes()).await.unwrap();
            }
        }
    });
    let (client, target) =
        (Client::new(Clock::start()), target::parse(&format!("a={url}")).unwrap());
    for _ in 0..3 {
        assert_eq!(client.run(&target, &ask(0), 0.0).await.outcome, Outcome::Done);
    }
    assert!(tasks.try_join_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_comments_is_silent() {
    let mut bytes = Box::pin(stream::unfold(0, |count| async move {
        sleep(Duration::from_secs(1)).await;
        let text = if count < 1000 { ": still here\n\n" } else { DONE };
        Some((Ok::<_, ()>(text), count + 1))
    }));
    assert_eq!(told(&mut bytes, &mut Events::default()).await, None);
}
