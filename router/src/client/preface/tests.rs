use super::*;

fn is_whole(pieces: &[&[u8]]) -> bool {
    let mut preface = Preface::default();
    pieces.iter().for_each(|it| preface.read(it));
    preface.is_whole()
}

#[test]
fn only_the_whole_preface_is_http2_however_it_is_split() {
    let frames: &[u8] = b"frames";
    for at in 0..=PREFACE.len() {
        let (left, right) = PREFACE.split_at(at);
        assert!(is_whole(&[left, right, frames]));
        assert!(is_whole(&[left, &[right, frames].concat()]));
        assert_eq!(is_whole(&[left]), right.is_empty());
        // One other byte anywhere, and it is something else for good.
        let mut other = PREFACE.to_vec();
        if let Some(byte) = other.get_mut(at) {
            *byte ^= 1;
            assert!(!is_whole(&[&other, PREFACE]));
        }
    }
    assert!(!is_whole(&[b"POST / HTTP/1.1\r\n\r\n", PREFACE]));
}
