use std::path::{Path, PathBuf};

use super::{Kind, Pair, Start};

fn start(kind: Kind, program: &str, folder: &Path) -> Start {
    Start {
        kind,
        program: PathBuf::from(program),
        folder: folder.to_owned(),
        pair: Pair {
            speculative: "http://127.0.0.1:8101".to_owned(),
            throughput: "http://127.0.0.1:8102".to_owned(),
            high: 5,
        },
        gguf: Some(PathBuf::from("/m.gguf")),
        threads: Some(2),
        in_flight_max: 16,
    }
}

#[test]
fn every_peer_is_told_where_the_pair_is() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, parts) in [
        (Kind::Haproxy, &["balance first", "speculative 127.0.0.1:8101 maxconn 5"][..]),
        (Kind::Nginx, &["least_conn;", "server 127.0.0.1:8101; server 127.0.0.1:8102;"]),
        (
            Kind::SglangRouter,
            &["launch", "--port 77", "http://127.0.0.1:8101 http://127.0.0.1:8102"],
        ),
        (Kind::VllmRouter, &["--host 127.0.0.1", "--prometheus-port 78"]),
        (Kind::LlamaServer, &["-m /m.gguf", "-t 2 -np 16 -c 32768"]),
    ] {
        let line = start(kind, "p", folder.path()).args(77, 78).unwrap().join(" ");
        let config = folder.path().join(format!("{}.conf", kind.label()));
        let text = line + &std::fs::read_to_string(config).unwrap_or_default();
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

#[tokio::test]
async fn a_peer_that_is_missing_or_ends_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let missing = start(Kind::Nginx, "no-such-program-here", folder.path()).run().await;
    assert_eq!(missing.unwrap_err(), "no-such-program-here is not installed");
    let ends = start(Kind::Haproxy, "false", folder.path()).run().await.unwrap_err();
    assert!(ends.starts_with("ended by itself") && ends.ends_with("it said nothing"), "{ends}");
    let mut no_model = start(Kind::LlamaServer, "false", folder.path());
    no_model.gguf = None;
    assert_eq!(no_model.run().await.unwrap_err(), "needs --gguf, the model's file");
}
