use super::Exposition;

#[test]
fn sums_over_what_is_not_named() {
    let text = "# HELP a_total of something\n# TYPE a_total counter\n\
                a_total{endpoint=\"x\",class=\"2xx\"} 3\n\
                a_total{endpoint=\"y\",class=\"2xx\"} 4 17\n\
                b{path=\"/{id} now\"} 2.5e1\nc 7\nbroken{\nd nonsense\n";
    let metrics = Exposition::parse(text);
    let check = |name, labels: &[(&str, &str)], wanted| {
        assert_eq!(metrics.sum(name, labels), wanted, "{name} {labels:?}");
    };
    check("a_total", &[], Some(7.0));
    check("a_total", &[("endpoint", "y")], Some(4.0));
    check("a_total", &[("endpoint", "y"), ("class", "5xx")], None);
    check("b", &[], Some(25.0));
    check("c", &[], Some(7.0));
    check("d", &[], None);
    check("broken", &[], None);
}
