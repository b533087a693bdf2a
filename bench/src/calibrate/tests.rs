use super::standing;
use crate::calibration::{File, Key, Threshold};

#[test]
fn a_file_stands_only_for_its_own_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calibration.json");
    let key = Key { model: "m".to_owned(), ..Key::default() };
    assert_eq!(standing(&path, &key), None);
    let curve = vec![(1, 2.0)];
    let mut file = File { key: key.clone(), ..File::of(curve.clone(), curve) };
    std::fs::write(&path, file.text()).unwrap();
    assert_eq!(standing(&path, &key), None);
    file.threshold = Some(Threshold { high: 8, low: 6, confidence: 0.9 });
    std::fs::write(&path, file.text()).unwrap();
    assert_eq!(standing(&path, &key), Some(8));
    assert_eq!(standing(&path, &Key { device: "other".to_owned(), ..key.clone() }), None);
    file.format = 2;
    std::fs::write(&path, file.text()).unwrap();
    assert_eq!(standing(&path, &key), None);
}
