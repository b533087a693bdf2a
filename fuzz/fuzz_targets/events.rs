//! A stream of server-sent events, cut anywhere: the same events, and what was written is read.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../bench/src/events.rs"]
mod events;

use events::Events;

fn read(pieces: &[&[u8]]) -> Option<Vec<String>> {
    let mut events = Events::default();
    let mut found = Vec::new();
    for piece in pieces {
        found.extend(events.push(piece)?);
    }
    Some(found)
}

// The first two bytes say where the others are cut.
fuzz_target!(|bytes: &[u8]| {
    let Some((cuts, stream)) = bytes.split_at_checked(2) else { return };
    let cut = |it: u8| usize::from(it) * stream.len() / 256;
    let (low, high) = (cut(cuts[0].min(cuts[1])), cut(cuts[0].max(cuts[1])));
    let whole = read(&[stream]);
    assert_eq!(whole, read(&[&stream[..low], &stream[low..high], &stream[high..]]));
    let bytewise: Vec<_> = stream.chunks(1).collect();
    assert_eq!(whole, read(&bytewise));
    let text = String::from_utf8_lossy(stream);
    let data = serde_json::Value::from(&*text).to_string();
    let written = format!(": comment\n\ndata: {data}\n\ndata: [DONE]\n\n");
    assert_eq!(read(&[written.as_bytes()]), Some(vec![data, "[DONE]".to_owned()]));
});
