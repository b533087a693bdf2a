use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Open;
use crate::client::{Ask, Client};
use crate::clock::Clock;
use crate::sample::Outcome;
use crate::target;

const ANSWER: &str = "HTTP/1.1 200 OK\r\n\
    content-type: text/event-stream\r\n\
    connection: close\r\n\r\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n\
    data: [DONE]\n\n";

/// Answers each request after `wait`, in its own task.
pub(crate) async fn server(wait: Duration) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut answers = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            answers.spawn(async move {
                let mut head = vec![0; 8192];
                assert_ne!(stream.read(&mut head).await.unwrap(), 0);
                tokio::time::sleep(wait).await;
                stream.write_all(ANSWER.as_bytes()).await.unwrap();
            });
        }
    });
    (url, tasks)
}

pub(crate) fn ask(index: u32) -> Ask {
    Ask {
        prompt: index,
        text: "hello".to_owned(),
        tokens_max: 1,
        temperature: 0.0,
        seed: 0,
        ignore_eos: false,
        drafts_max: None,
        cache_salt: None,
    }
}

fn open(in_flight_max: usize) -> Open {
    Open { shape: "bursts:40x8".parse().unwrap(), seconds: 0.4, in_flight_max, seed: 2 }
}

/// A client that may keep only one request open sends late, and says so in the latency.
#[tokio::test]
async fn latency_counts_from_when_a_request_was_due() {
    let (url, _server) = server(Duration::from_millis(20)).await;
    let client = Client::new(Clock::start());
    let target = target::parse(&format!("a={url}")).unwrap();
    let narrow = open(1).run(&client, &target, ask).await;
    let wide = open(64).run(&client, &target, ask).await;
    assert_eq!(narrow.failures() + wide.failures(), 0);
    assert_eq!(narrow.samples.len(), wide.samples.len());
    assert!(8 <= narrow.samples.len() && narrow.samples.len() % 8 == 0);
    assert!(narrow.samples.iter().all(|it| it.outcome == Outcome::Done && it.tokens == 1));
    // Eight at once, one after the other: the last of a burst is sent seven answers late.
    let latest = narrow.samples.iter().max_by(|a, b| a.due_ms.total_cmp(&b.due_ms)).unwrap();
    let burst = narrow.samples.iter().filter(|it| it.due_ms == latest.due_ms);
    let late = burst.map(|it| it.sent_ms - it.due_ms).fold(0.0, f64::max);
    assert!(7.0 * 20.0 <= late, "{late}");
    let ttft = narrow.samples.iter().filter_map(|it| it.ttft_ms()).fold(0.0, f64::max);
    assert!(late <= ttft);
}
