use super::*;

#[test]
fn a_loop_lives_while_it_turns_or_rests() {
    let pulse = Pulse::default();
    let before = pulse.beat();
    assert!(!pulse.lives_since(before), "it neither turned nor rests");
    pulse.turn();
    assert!(pulse.lives_since(before));
    let before = pulse.beat();
    pulse.rest();
    assert!(pulse.lives_since(before) && pulse.lives_since(pulse.beat()));
    pulse.wake();
    assert!(!pulse.lives_since(pulse.beat()), "awake and stuck");
}
