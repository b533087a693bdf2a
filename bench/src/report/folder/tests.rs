use super::write;
use crate::report::tests::results;

#[test]
fn a_folder_has_everything_to_read_and_to_redraw() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("2026-11-29-x");
    write(&path, &results()).unwrap();
    let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    assert_eq!(read("requests.jsonl").lines().count(), 3);
    assert_eq!(read("cells.jsonl").lines().count(), 8);
    let csv = read("cells.csv");
    let columns: Vec<usize> = csv.lines().map(|it| it.split(',').count()).collect();
    assert_eq!(columns, [17; 9]);
    assert!(csv.lines().nth(1).unwrap().starts_with("fast,1,0,200.000,200.000,100.000,10.000,"));
    for field in ["\"date\"", "\"processor\"", "\"commit\"", "\"command\"", "\"memory_gib\""] {
        assert!(read("origin.json").contains(field), "{field}");
    }
    assert!(read("total.svg").contains("fast") && read("each.svg").contains("slow"));
    assert!(read("table.md").starts_with("| load |"));
}
