use super::*;

fn is_ambiguous(pieces: &[&str]) -> bool {
    let mut head = Head::default();
    for piece in pieces {
        head.read(piece.as_bytes());
    }
    head.is_ambiguous()
}

#[test]
fn both_kinds_of_framing_are_seen_however_they_come() {
    let both = "POST / HTTP/1.1\r\nContent-Length: 3\r\nx: y\r\nTRANSFER-encoding:chunked\r\n\r\n";
    let swapped = "POST / HTTP/1.1\ntransfer-encoding: chunked\ncontent-length:3\n\n";
    for text in [both, swapped] {
        for at in 0..=text.len() {
            assert!(is_ambiguous(&[&text[..at], &text[at..]]), "{text} at {at}");
        }
        let bytes: Vec<String> = text.chars().map(String::from).collect();
        assert!(is_ambiguous(&bytes.iter().map(String::as_str).collect::<Vec<_>>()));
        assert!(is_ambiguous(&["\r\n\r\n", text]));
    }
}

#[test]
fn one_kind_is_fine_and_bodies_are_not_read() {
    let head = "POST /content-length: HTTP/1.1\r\ntransfer-encoding: chunked\r\n\
                x-content-length: 3\r\ncontent-lengths: 3\r\ncontent-length-x: 3\r\n\r\n";
    for body in ["", "content-length: 3\r\n", "\r\ncontent-length: 3\r\n\r\n"] {
        assert!(!is_ambiguous(&[head, body]));
        assert!(!is_ambiguous(&[&format!("{head}{body}")]));
    }
    let length = "POST / HTTP/1.1\r\ncontent-length: 28\r\n\r\ntransfer-encoding: chunked\r\n";
    assert!(!is_ambiguous(&[length]));
}
