use super::*;

fn wish(temperature: f32) -> Wish {
    Wish { temperature, ..Wish::greedy() }
}

#[test]
fn floors_keep_what_they_promise() {
    // Probabilities .5, .25, .125, .125.
    let logits: Vec<f32> = [0.5_f32, 0.25, 0.125, 0.125].iter().map(|it| it.ln()).collect();
    let kept = |wish: Wish| {
        let floor = cpu_floor(&logits, &wish);
        logits.iter().filter(|it| floor <= **it).count()
    };
    assert_eq!(kept(wish(1.0)), 4);
    assert_eq!(kept(Wish { top_k: 2, ..wish(1.0) }), 2);
    assert_eq!(kept(Wish { top_p: 0.7, ..wish(1.0) }), 2);
    assert_eq!(kept(Wish { min_p: 0.4, ..wish(1.0) }), 2);
    assert_eq!(kept(Wish { top_k: 2, top_p: 0.6, ..wish(1.0) }), 1);
}

#[test]
fn noise_draws_by_probability() {
    let logits = [0.7_f32.ln(), 0.3_f32.ln()];
    let ones = (0..2000).filter(|&place| cpu(&logits, &wish(1.0), place) == 1).count();
    assert!((500..700).contains(&ones), "{ones} of 2000 for a probability of .3");
}

#[test]
fn noise_depends_on_seed_place_and_token() {
    let noises = [noise(1, 0, 0), noise(2, 0, 0), noise(1, 1, 0), noise(1, 0, 1)];
    for (i, a) in noises.iter().enumerate() {
        assert!(a.is_finite());
        assert!(noises[..i].iter().all(|b| a != b));
    }
}
