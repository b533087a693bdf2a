use clap::Parser;

use super::flags::{Command, Line};
use super::{ConfigError, Speculation, Up, reachable};
use crate::machine::Cores;

fn up(words: &str) -> Result<Up, Vec<ConfigError>> {
    let words = ["crossover", "up"].into_iter().chain(words.split_whitespace());
    let Command::Up(flags) = Line::try_parse_from(words).unwrap().command else { panic!() };
    Up::check(&flags, &Cores::new(vec![vec![0], vec![1], vec![2], vec![3]]))
}

fn flags_of(errors: &[ConfigError]) -> Vec<&str> {
    errors.iter().map(|it| it.flag).collect()
}

#[test]
fn nothing_has_to_be_said() {
    let config = up("").unwrap();
    assert_eq!((config.high, config.low), (4, 3));
    assert_eq!(config.devices, ["cpu:0-1", "cpu:2-3"]);
    let Speculation::Eagle3 { head } = config.speculation else { panic!() };
    assert!(head.ends_with("smollm2-135m-instruct-eagle3"));
}

#[test]
fn every_mistake_is_reported_at_once() {
    let words = "--model no/such/model --head /not/there --high 3 --low 5 --admin 127.0.0.1:8000 \
                 --throughput 127.0.0.1:0";
    let errors = up(words).unwrap_err();
    assert_eq!(flags_of(&errors), ["model", "head", "low", "admin", "throughput"]);
}

#[test]
fn another_model_needs_its_own_head() {
    let here = env!("CARGO_MANIFEST_DIR");
    assert_eq!(flags_of(&up(&format!("--model {here}")).unwrap_err()), ["head"]);
    let config = up(&format!("--model {here} --ngram")).unwrap();
    assert_eq!(config.speculation, Speculation::Ngram);
}

#[test]
fn all_addresses_of_a_port_clash_with_each() {
    assert_eq!(flags_of(&up("--listen 0.0.0.0:8101").unwrap_err()), ["speculative"]);
    assert!(up("--listen 127.0.0.2:8101").is_ok());
    assert_eq!(flags_of(&up("--high 0").unwrap_err()), ["high"]);
}

#[test]
fn eight_bits_are_for_gpus() {
    let gpus = "--quantization fp8 --device-speculative cuda:0";
    let errors = up(gpus).unwrap_err();
    assert_eq!(flags_of(&errors), ["quantization"]);
    assert!(errors[0].why.ends_with("one instance computes on cpu:2-3"), "{}", errors[0]);
    assert!(up(&format!("{gpus} --device-throughput cuda:1")).is_ok());
}

#[test]
fn an_address_for_everybody_is_reached_over_loopback() {
    let check = |given: &str, wanted: &str| {
        assert_eq!(reachable(given.parse().unwrap()).to_string(), wanted);
    };
    check("0.0.0.0:80", "127.0.0.1:80");
    check("[::]:80", "[::1]:80");
    check("10.0.0.1:80", "10.0.0.1:80");
}
