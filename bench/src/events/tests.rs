use super::Events;

#[test]
fn events_are_found_however_the_bytes_are_cut() {
    let stream = "data: {\"a\":\"é\"}\n\n: comment\n\ndata:[DONE]\n\n".as_bytes();
    for cut in 0..=stream.len() {
        let mut events = Events::default();
        let mut found = events.push(&stream[..cut]).unwrap();
        found.extend(events.push(&stream[cut..]).unwrap());
        assert_eq!(found, ["{\"a\":\"é\"}", "[DONE]"], "cut at {cut}");
    }
}

#[test]
fn a_stream_without_lines_is_given_up() {
    let mut events = Events::default();
    assert!(events.push(&vec![b'x'; 1 << 20]).is_some());
    assert!(events.push(b"x").is_none());
}
