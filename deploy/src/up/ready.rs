//! Waits until both engines and the router say that they can serve.

use std::time::Duration;

use reqwest::Client;
use tokio::time::{sleep, timeout};

use super::plan::Plan;
use crate::body;
use crate::clock;
use crate::config::{Up, reachable};
use crate::exposition::Exposition;
use crate::screen::Screen;

const ASK_EVERY: Duration = Duration::from_millis(200);
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// For asking the children: never through a proxy.
pub(crate) fn client() -> Client {
    Client::builder()
        .no_proxy()
        .timeout(ANSWER_MAX)
        .build()
        .expect("nothing of the environment is used")
}

/// Asks everyone until all say yes, at most `config.wait_max`.
pub(super) async fn wait(config: &Up, plan: &Plan, screen: &mut Screen) -> Result<(), String> {
    let at = &config.addresses;
    let mut waiting = vec![
        (plan.programs[0].name, format!("http://{}/health", reachable(at.speculative))),
        (plan.programs[1].name, format!("http://{}/health", reachable(at.throughput))),
        (plan.programs[2].name, format!("http://{}/metrics", reachable(at.admin))),
    ];
    let client = client();
    let began = clock::now();
    while !waiting.is_empty() {
        let seconds = (clock::now() - began).as_secs();
        let names: Vec<_> = waiting.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        if began + config.wait_max < clock::now() {
            let limit = config.wait_max.as_secs();
            return Err(format!("not ready after {limit} s (--wait-max): {names}"));
        }
        screen.status(&format!("waiting for: {names} ({seconds} s)"));
        let mut still = Vec::new();
        for (name, url) in waiting {
            let is_ready = if url.ends_with("/metrics") {
                sees_both(&client, &url).await
            } else {
                says_yes(&client, &url).await
            };
            if is_ready {
                let took = (clock::now() - began).as_secs_f64();
                screen.line(&format!("the {name} is ready ({took:.1} s)"));
            } else {
                still.push((name, url));
            }
        }
        waiting = still;
        if !waiting.is_empty() {
            sleep(ASK_EVERY).await;
        }
    }
    Ok(())
}

/// The router is ready with one instance; a pair is up when it has seen both.
async fn sees_both(client: &Client, url: &str) -> bool {
    let answer = timeout(ANSWER_MAX, client.get(url).send()).await;
    let Ok(Ok(answer)) = answer else { return false };
    let bytes = timeout(ANSWER_MAX, body::read(answer)).await;
    let Ok(Ok(bytes)) = bytes else { return false };
    let text = String::from_utf8_lossy(&bytes);
    Exposition::parse(&text).sum("crossover_router_endpoint_up", &[]) == Some(2.0)
}

async fn says_yes(client: &Client, url: &str) -> bool {
    let answer = timeout(ANSWER_MAX, client.get(url).send()).await;
    matches!(answer, Ok(Ok(it)) if it.status().is_success())
}
