use super::*;

fn wish(temperature: f32) -> Wish {
    Wish { temperature, ..Wish::greedy() }
}

/// Which tokens are ever chosen, of probabilities .5, .25, .125, .125.
fn kept(wish: Wish) -> Vec<u32> {
    let logits: Vec<f32> = [0.5_f32, 0.25, 0.125, 0.125].iter().map(|it| it.ln()).collect();
    let mut tokens: Vec<u32> = (0..300).map(|position| cpu(&logits, &wish, position)).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[test]
fn filters_keep_what_they_promise() {
    assert_eq!(kept(wish(1.0)), [0, 1, 2, 3]);
    assert_eq!(kept(wish(0.0)), [0]);
    assert_eq!(kept(Wish { top_k: 3, ..wish(1.0) }), [0, 1, 2]);
    assert_eq!(kept(Wish { top_p: 0.7, ..wish(1.0) }), [0, 1]);
    assert_eq!(kept(Wish { min_p: 0.4, ..wish(1.0) }), [0, 1]);
    assert_eq!(kept(Wish { top_k: 2, top_p: 0.6, ..wish(1.0) }), [0]);
}

#[test]
fn draws_follow_probabilities() {
    let logits = [0.7_f32.ln(), 0.3_f32.ln()];
    let ones = (0..2000).filter(|&position| cpu(&logits, &wish(1.0), position) == 1).count();
    assert!((500..700).contains(&ones), "{ones} of 2000 for a probability of .3");
}
