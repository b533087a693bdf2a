use super::{Speculation, round_tokens, total};

const PAGE: &str = "# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{model_name=\"a b\"} 10
vllm:spec_decode_num_drafts_total{model_name=\"c\"} 2.5e1
vllm:spec_decode_num_drafts_total_other 99
vllm:spec_decode_num_accepted_tokens_total 70
";

#[test]
fn metrics_are_summed_over_labels() {
    assert_eq!(total(PAGE, "vllm:spec_decode_num_drafts_total"), 35.0);
    assert_eq!(total(PAGE, "vllm:spec_decode_num_accepted_tokens_total"), 70.0);
    assert_eq!(total(PAGE, "vllm:nothing"), 0.0);
}

#[test]
fn tokens_a_round_are_told_between_two_readings() {
    let before = Some(Speculation { rounds: 10.0, accepted: 5.0 });
    let after = Some(Speculation { rounds: 30.0, accepted: 45.0 });
    assert_eq!(round_tokens(before, after), Some(3.0));
    assert_eq!(round_tokens(after, after), None);
    assert_eq!(round_tokens(None, after), None);
}
