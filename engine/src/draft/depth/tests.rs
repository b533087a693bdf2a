use super::*;

/// Plays loads, each for some rounds, and says the depth after each.
fn check(mut depth: Depth, script: &[(u32, u32, u32)]) -> Switches {
    for (line, &(decoding, rounds, expected)) in script.iter().enumerate() {
        let last = (0..rounds).map(|_| depth.next(decoding)).last();
        assert_eq!(last.unwrap_or(depth.drafts()), expected, "line {line}");
        assert_eq!(depth.drafts(), expected);
    }
    depth.switches()
}

#[test]
fn the_first_switch_is_free() {
    check(Depth::until(4, 3), &[(9, 1, 0)]);
    check(Depth::none(), &[(1, 99, 0)]);
    check(Depth::always(5), &[(u32::MAX, 99, 5)]);
    check(Depth::table(&[(2, 7), (8, 3)]).unwrap(), &[(5, 1, 3)]);
}

#[test]
fn no_switch_within_sixteen_rounds() {
    let switches = check(
        Depth::until(4, 3),
        &[(4, 1, 3), (5, 1, 0), (1, 15, 0), (1, 1, 3), (5, 15, 3), (5, 1, 0)],
    );
    assert_eq!(switches, Switches { up: 1, down: 2 });
}

/// Between the two bounds the depth stays what it was.
#[test]
fn leaving_and_entering_have_different_bounds() {
    check(
        Depth::until(8, 3),
        &[(8, 40, 3), (9, 1, 0), (8, 40, 0), (7, 40, 0), (6, 1, 3), (7, 40, 3), (8, 40, 3)],
    );
    check(Depth::until(1, 3), &[(2, 1, 0), (1, 16, 3)]);
}

#[test]
fn a_table_goes_to_the_right_line_at_once() {
    let table = || Depth::table(&[(1, 7), (4, 5), (16, 2)]).unwrap();
    check(table(), &[(1, 16, 7), (17, 1, 0), (3, 16, 5), (16, 16, 2), (99, 16, 0), (1, 16, 7)]);
    // 13 is above three quarters of 16, so the way back is longer.
    check(table(), &[(17, 1, 0), (13, 40, 0), (12, 1, 2)]);
    assert_eq!(Depth::table(&[(4, 5), (4, 2)]).unwrap_err(), TableOutOfOrder { line: 1 });
    assert_eq!(Depth::table(&[(4, 5), (9, 2), (3, 1)]).unwrap_err().line, 2);
}

#[test]
fn an_idle_engine_may_switch_at_once() {
    check(Depth::until(4, 3), &[(5, 1, 0), (0, 1, 0), (1, 1, 3)]);
}

/// A load that swings around the bound switches once, not each round.
#[test]
fn the_depth_does_not_flutter() {
    let mut depth = Depth::until(8, 3);
    for round in 0..1000 {
        depth.next(if round % 2 == 0 { 8 } else { 9 });
    }
    assert_eq!(depth.switches(), Switches { up: 0, down: 1 });
}
