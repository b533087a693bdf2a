//! Whose turn it is.

use super::Turns;

#[test]
fn steps_take_turns() {
    let mut turns = Turns::default();
    for step in 0..5 {
        assert_eq!((turns.next(), turns.expect()), (step % 2, step % 2));
        if 0 < step {
            turns.read((step + 1) % 2);
        }
    }
}

#[test]
fn what_is_taken_back_leaves_unread_results_alone() {
    let mut turns = Turns::default();
    turns.next();
    let first = turns.expect();
    assert_ne!(turns.next(), first);
    turns.take_back();
    assert_ne!(turns.next(), first);
    let second = turns.expect();
    turns.read(first);
    assert_eq!(turns.next(), first);
    assert_ne!(second, first);
}

#[test]
#[should_panic(expected = "results are read")]
fn no_step_answers_in_the_place_of_unread_results() {
    let mut turns = Turns::default();
    turns.next();
    turns.expect();
    turns.next();
    turns.next();
}
