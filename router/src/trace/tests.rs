use super::*;

const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn headers(trace: &str) -> HeaderMap {
    HeaderMap::from_iter([(TRACE, HeaderValue::from_str(trace).unwrap())])
}

#[test]
fn a_given_trace_passes_untouched_while_no_spans_are_told() {
    for text in [GIVEN, "00-11-22-01", "anything"] {
        let mut headers = headers(text);
        mark(&mut headers);
        assert_eq!(headers[TRACE], text);
    }
    let mut headers = HeaderMap::new();
    mark(&mut headers);
    let (_, _, flags) = parse(headers[TRACE].to_str().unwrap()).unwrap();
    assert_eq!(flags, 0);
}

#[test]
fn the_router_steps_in_between() {
    let mut headers = headers(GIVEN);
    let trace = step_in(&mut headers);
    assert_eq!(trace.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
    assert_eq!((trace.parent, trace.flags), (0xb7ad_6b71_6920_3331, 1));
    let next = parse(headers[TRACE].to_str().unwrap()).unwrap();
    assert_eq!(next, (trace.trace, trace.span, 1));
}

#[test]
fn what_is_no_trace_begins_a_new_one() {
    for text in [
        "",
        "00-11-22-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
    ] {
        let trace = step_in(&mut headers(text));
        assert!(trace.parent == 0 && trace.is_sampled(), "{text}");
    }
    let later = format!("01{}-more", &GIVEN[2..]);
    assert_eq!(step_in(&mut headers(&later)).parent, 0xb7ad_6b71_6920_3331);
}
