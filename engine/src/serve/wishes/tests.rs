use serde_json::json;

use super::*;

const BOUNDS: Bounds<'_> =
    Bounds { vocab: 100, context_max: 1000, stop_tokens: &[TokenId(2), TokenId(7)] };

fn take(value: &Value) -> Result<Wishes, Refusal> {
    Wishes::take(&mut Fields::parse(value.to_string().as_bytes()).unwrap(), BOUNDS)
}

#[test]
fn nothing_wished() {
    let wishes = take(&json!({})).unwrap();
    assert_eq!((wishes.n, wishes.new_max, wishes.seed, wishes.stream), (1, None, None, None));
    let ends = vec![TokenId(2), TokenId(7)];
    let plain = Sampling { temperature: 1.0, stop_tokens: ends, ..Sampling::greedy() };
    assert_eq!(wishes.sampling, plain);
    assert!(wishes.skip_special_tokens && !wishes.echo);
    assert_eq!(wishes.drafts_max, DRAFTS_MAX);
    assert_eq!(wishes.salt, Salt::default());
}

#[test]
fn everything_wished() {
    let wishes = take(&json!({
        "n": 3, "best_of": 3, "max_tokens": 5, "max_completion_tokens": 9, "seed": -1,
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": 1,
        "frequency_penalty": -0.5, "repetition_penalty": 1.2, "logit_bias": {"9": 5, "3": -100},
        "stop": ["a", "b"], "stop_token_ids": [5, 2], "ignore_eos": true, "min_tokens": 4,
        "include_stop_str_in_output": true, "skip_special_tokens": false, "priority": -3,
        "speculative": false, "timeout": 1.5, "stream": true, "user": "someone",
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "cache_salt": "tenant", "prediction": {"type": "content", "content": "a"},
    }))
    .unwrap();
    assert_eq!((wishes.n, wishes.new_max, wishes.seed), (3, Some(9), Some(u64::MAX)));
    assert_eq!(wishes.time_max, Some(Duration::from_millis(1500)));
    assert_eq!(wishes.stream, Some(StreamOptions { usage: true, usage_always: true }));
    let sampling = Sampling {
        seed: 0,
        temperature: 0.5,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.05,
        presence_penalty: 1.0,
        frequency_penalty: -0.5,
        repetition_penalty: 1.2,
        bias: vec![(TokenId(3), -100.0), (TokenId(9), 5.0)],
        stop_tokens: vec![TokenId(2), TokenId(5)],
        outputs_min: 4,
        logprobs: None,
        prompt_logprobs: None,
    };
    assert_eq!(wishes.sampling, sampling);
    let strings = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(*wishes.stops, Stops { strings, include: true, tokens_min: 4 });
    assert_eq!((wishes.priority, wishes.drafts_max, wishes.skip_special_tokens), (-3, 0, false));
    assert_ne!(wishes.salt, Salt::default());
}

#[test]
fn each_wrong_wish_names_its_field() {
    let many: Vec<_> = (0..17).map(|it| it.to_string()).collect();
    for (param, value) in [
        ("n", json!(0)),
        ("n", json!(129)),
        ("n", json!("1")),
        ("best_of", json!(2)),
        ("max_tokens", json!(-1)),
        ("max_completion_tokens", json!(1.5)),
        ("min_tokens", json!(1001)),
        ("seed", json!("x")),
        ("seed", json!(1.5)),
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("min_p", json!(2)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!([])),
        ("repetition_penalty", json!(0)),
        ("logit_bias", json!({"100": 1})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"5": 1, "+5": 1})),
        ("logit_bias", json!({"05": 1})),
        ("logit_bias.5", json!({"5": 101})),
        ("logit_bias", json!([1])),
        ("stop", json!("")),
        ("stop", json!(many)),
        ("stop[0]", json!([1])),
        ("stop_token_ids[1]", json!([1, 100])),
        ("ignore_eos", json!(1)),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("echo", json!(1)),
        ("priority", json!(1_i64 << 40)),
        ("cache_salt", json!("")),
        ("cache_salt", json!(7)),
        ("speculative", json!("no")),
        ("speculative", json!(-1)),
        ("speculative", json!(17)),
        ("suffix", json!("x")),
        ("use_beam_search", json!(true)),
        ("guided_json", json!({})),
        ("prompt_logprobs", json!(0)),
    ] {
        let field = param.split(['[', '.']).next().unwrap();
        match take(&json!({ field: value })) {
            Err(Refusal::Field { param: named, .. }) => assert_eq!(named, param),
            other => panic!("{param} {value}: {other:?}"),
        }
    }
    let odd = json!({"stream": true, "stream_options": {"usage": true}});
    assert_eq!(take(&odd).unwrap_err().to_string(), "stream_options.usage is not known");
    assert!(take(&json!({"min_tokens": 5, "max_tokens": 4})).is_err());
    for name in ["allowed_token_ids", "bad_words", "functions"] {
        assert!(take(&json!({ name: [] })).is_ok() && take(&json!({ name: [1] })).is_err());
    }
}
