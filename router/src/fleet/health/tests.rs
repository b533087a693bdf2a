use std::time::Duration;

use super::*;

const RULES: HealthRules = HealthRules {
    interval: Duration::from_secs(1),
    timeout: Duration::from_secs(10),
    fall: 3,
    rise: 2,
    slow_start: Duration::from_secs(5),
};

/// `r` ready, `n` not ready, `x` refused, `s` silent, `f` silent but flowing; `+` expects up,
/// `-` expects down.
fn check(script: &str) -> Health {
    let mut health = Health::default();
    for (at, step) in script.chars().enumerate() {
        let finding = match step {
            'r' => Finding::Ready,
            'n' => Finding::NotReady,
            'x' => Finding::Refused,
            's' => Finding::Silent { flowing: false },
            'f' => Finding::Silent { flowing: true },
            expected => {
                assert_eq!(health.is_up(), expected == '+', "{script} at {at}");
                continue;
            }
        };
        health.on(finding, &RULES);
    }
    health
}

#[test]
fn refused_counts_at_once_and_silence_only_in_a_row() {
    check("-r+x-");
    check("-r+n-");
    check("-r+s+s+s-");
    check("-r+s+s+r+s+s+s-");
}

#[test]
fn flowing_tokens_are_health() {
    check("r+f+f+f+f+f+f+");
    check("r+s+s+f+s+s+s-");
    // But nothing that was down comes up by itself.
    check("r+x-f-f-f-");
}

#[test]
fn coming_back_takes_more_than_coming_up() {
    check("-s-x-r+x-r-r+");
    check("r+x-r-s-r-r+");
    assert!(!check("xxr+").has_been_down());
    assert!(check("r+x-rr+").has_been_down());
}
