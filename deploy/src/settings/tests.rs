use super::{ENGINE, EXAMPLES, ROUTER, judge};
use crate::config::flags::Example;

#[test]
fn each_file_is_judged_by_who_would_run_it() {
    let of = |text: &str| judge(&text.parse().unwrap());
    for (which, text) in EXAMPLES {
        assert_eq!(of(text), if which == Example::Router { ROUTER } else { ENGINE });
    }
    // The model may come as a flag.
    assert_eq!(of("mode = 'baseline'\ndevice = 'cpu:0'"), ENGINE);
    assert_eq!(of("admin = '127.0.0.1:8001'"), ROUTER);
}
