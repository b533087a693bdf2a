use std::process::Command;
use std::time::Duration;

use super::output;

fn ask(script: &str, answer_max: Duration) -> Result<String, String> {
    output(Command::new("sh").args(["-c", script]), answer_max)
}

#[test]
fn an_answer_is_what_was_said_in_whatever_letters() {
    let long = Duration::from_secs(60);
    assert_eq!(ask("printf 'so\\377'", long).unwrap(), "so\u{fffd}");
    assert_eq!(ask("exit 3", long).unwrap_err(), "exit status: 3");
    let missing = output(&mut Command::new("no-such-program-here"), long).unwrap_err();
    assert!(missing.contains("No such file"), "{missing}");
}

#[test]
fn who_hangs_or_never_ends_is_given_up() {
    let short = Duration::from_millis(200);
    for script in ["exec sleep 600", "exec yes"] {
        assert_eq!(ask(script, short).unwrap_err(), "no answer in 0 s");
    }
}
