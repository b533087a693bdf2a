use super::*;

#[test]
fn quantiles_are_read_between_the_edges() {
    let edges = [1.0, 2.0, 4.0];
    let check = |cumulative: &[u64], share: f64, expected: Option<f64>| {
        assert_eq!(quantile(cumulative, &edges, share), expected, "{cumulative:?} {share}");
    };
    check(&[0, 0, 0], 0.5, None);
    check(&[10, 10, 10], 0.5, Some(0.5));
    check(&[0, 10, 10], 0.5, Some(1.5));
    check(&[5, 5, 10], 0.75, Some(3.0));
    check(&[5, 5, 10], 0.5, Some(1.0));
}

#[test]
fn a_span_is_the_difference() {
    let earlier = Counts { routed: 3, outcomes: vec![1, 0], ..Counts::default() };
    let later = Counts { routed: 10, outcomes: vec![4, 2], ..Counts::default() };
    let span = later.since(&earlier);
    assert_eq!((span.routed, span.outcomes), (7, vec![3, 2]));
    assert_eq!(later.since(&Counts::default()), later);
}
