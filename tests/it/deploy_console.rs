//! The console page in a real browser, before a Prometheus that has been told evil names.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::deploy_names::read;
use super::router_page::{browser, built};

/// One series, named by somebody who would like to run a script in an operator's browser.
const EVIL: &str = r#"{"status": "success", "data": {"result": [{
    "metric": {"endpoint": "<img src=x onerror=alert(1)>", "mode": "<b>m</b>"},
    "values": [[1, "3"], [2, "5"]]}]}}"#;

fn answer(stream: &mut TcpStream, page: &str) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let is_query = head.starts_with(b"GET /api/v1/query_range?");
    let (kind, body) =
        if is_query { ("application/json", EVIL) } else { ("text/html; charset=utf-8", page) };
    let len = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len}");
    write!(stream, "{head}\r\nconnection: close\r\n\r\n{body}").ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_is_text_in_the_console() {
    let Some(browser) = browser() else {
        println!("skipped: no chromium here");
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = read("prometheus/consoles/crossover.html");
    let panels = page.matches("<section ").count();
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            answer(&mut stream.unwrap(), &page);
        }
    });
    let page = built(format!("http://{address}/consoles/crossover.html"), browser).await;
    // Every panel has its legend.
    assert_eq!(page.matches("</li></ul>").count(), panels, "{page}");
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt; 5.0"), "{page}");
    assert!(page.contains("&lt;b&gt;m&lt;/b&gt; 5.0"), "{page}");
    assert!(!page.contains("<img") && !page.contains("<b>m"), "{page}");
}
