//! The comparison of a key with what an endpoint tells.

use super::*;

fn key(model: &str, quantisation: &str, device: &str) -> Key {
    let [model, quantisation, device] = [model, quantisation, device].map(str::to_owned);
    Key { model, quantisation, device }
}

fn found(models: &[&str], quantisation: Option<&str>, device: Option<&str>) -> Identity {
    Identity {
        models: Some(models.iter().map(|&it| it.to_owned()).collect()),
        quantisation: quantisation.map(str::to_owned),
        device: device.map(str::to_owned),
    }
}

#[test]
fn each_part_is_compared_and_named() {
    let ours = found(&["m", "org/m"], Some("q4_1"), Some("cpu:4-5"));
    let cases = [
        (key("m", "q4_1", "cpu:0-1"), None),
        (key("org/m", "Q4_1", "CPU:1,3"), None),
        (key("other", "q4_1", "cpu:0-1"), Some("model \"other\"")),
        (key("m", "q8_0", "cpu:0-1"), Some("quantisation \"q8_0\"")),
        (key("m", "q4_1", "cpu:0"), Some("device \"cpu:0\"")),
        (key("m", "q4_1", "gpu:0,1"), Some("device \"gpu:0,1\"")),
        (key("m", "q4_1", "half an H200"), Some("device \"half an H200\"")),
    ];
    for (key, expected) in cases {
        let mismatch = key.mismatch(&ours);
        match (&mismatch, expected) {
            (None, None) => {}
            (Some(why), Some(part)) => assert!(why.contains(part), "{why}"),
            _ => panic!("{key:?}: {mismatch:?}"),
        }
    }
}

#[test]
fn what_nobody_says_is_not_compared() {
    let nothing = found(&[], None, None);
    assert_eq!(key("m", "q4_1", "cpu:0").mismatch(&nothing), None);
    assert_eq!(key("m", "q4_1", "cpu:0").mismatch(&Identity::default()), None);
    let ours = found(&["m"], Some("q4_1"), Some("cpu:0"));
    assert_eq!(Key::default().mismatch(&ours), None);
    // Servers of others tell their models only.
    let other = found(&["m"], None, None);
    assert_eq!(key("m", "q8_0", "gpu:0").mismatch(&other), None);
    assert!(key("n", "", "").mismatch(&other).is_some());
}

#[test]
fn a_device_of_words_is_compared_word_for_word() {
    let ours = found(&[], None, Some("MIG-4f2a:x"));
    assert_eq!(key("", "", "mig-4f2a:x").mismatch(&ours), None);
    assert!(key("", "", "MIG-77:x").mismatch(&ours).is_some());
    let odd = found(&[], None, Some("cpu:3-1"));
    assert!(key("", "", "cpu:0").mismatch(&odd).is_some());
}
