use clap::Parser;

use super::*;
use crate::config::raw::Line;
use crate::model::Rope;

const PAGE_BYTES: u64 = 1 << 20;

fn fit(words: &str, available: Option<u64>) -> Result<Sizes, String> {
    let words = ["engine", "--model", "m"].into_iter().chain(words.split_whitespace());
    let config = Config::new(Line::try_parse_from(words).unwrap().raw).unwrap();
    let wanted = context_max(&config, &model())?;
    Sizes::fit(&config, wanted, PAGE_BYTES, available)
}

fn model() -> ModelConfig {
    ModelConfig {
        name: "m".to_owned(),
        vocab: 512,
        hidden: 64,
        intermediate: 128,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        rms_eps: 1e-5,
        rope: Rope { theta: 1e4, factors: Vec::new() },
        context_max: 8192,
        tied: true,
        qkv_bias: false,
        qk_norm: false,
    }
}

#[test]
fn pages_follow_from_memory() {
    let check = |words, available: u64, pages, context_max| {
        let sizes = fit(words, Some(available << 20)).unwrap();
        assert_eq!((sizes.pages, sizes.context_max), (pages, context_max), "{words}");
    };
    check("--memory 600MiB", 1000, 600, 8192);
    check("--memory-fraction 0.5", 1000, 500, 8000);
    check("--memory 100MiB", 1000, 100, 1600);
    check("--memory 100MiB --context-max 1600", 1000, 100, 1600);
    // Twice what the running requests can fill is enough.
    check("--memory-fraction 1 --context-max 160 --running-max 2", 1000, 40, 160);
    assert_eq!(fit("--memory 1GiB", None).unwrap().pages, 1024);
}

#[test]
fn too_little_memory_is_said_in_one_line() {
    let check = |words, available: Option<u64>, start: &str| {
        let error = fit(words, available.map(|it| it << 20)).unwrap_err();
        assert!(error.starts_with(start) && !error.contains('\n'), "{error}");
    };
    check("--memory 2GiB", Some(1000), "--memory: 2.0 GiB were asked for, and 1000.0 MiB are");
    check("--memory 7MiB", Some(1000), "--memory: 7.0 MiB hold keys and values for 112 tokens");
    check("--memory 99MiB --context-max 1600", Some(1000), "--memory: 99.0 MiB hold");
    check("--context-max 9000", Some(1000), "--context-max: 9000 is more than the 8192 tokens");
    check("", None, "--memory-fraction: the system does not say");
}
