use super::words::WishWords;
use super::*;

#[test]
fn a_step_is_a_header_and_what_it_points_to() {
    let mut step = StepWords::default();
    step.clear();
    let first = Entry { lane: 3, start: 5, fed: 2, flags: CHOOSES, ..Entry::default() };
    let lists = Lists { tokens: &[7, 8], biases: &[(9, 0.5)], ..Lists::default() };
    step.push(first, Wish::greedy(), lists, 0);
    let held = Entry { fed: 1, drafts: 1, held: 1, flags: CHOOSES | CHAINED, ..Entry::default() };
    step.push(held, Wish::greedy(), Lists::default(), 3);
    step.patch(3, 0, 11);
    let words = step.finish().to_vec();
    assert_eq!(words[..4], [2, 5, 4, 1]);
    let list = |at: usize, len: usize| words[words[at] as usize..][..len].to_vec();
    assert_eq!(list(5, 5), [0, 0, 1, 1, NONE]);
    assert_eq!(list(6, 4), [1, 2, 3, NONE]);
    assert_eq!(list(7, 3), [3, 0, 11]);
    let entries = &words[words[4] as usize..];
    assert_eq!(entries[..4], [3, 0, 5, 2]);
    let tokens = entries[9] as usize;
    assert_eq!(words[tokens..tokens + 2], [7, 8]);
    let wish = entries[10] as usize;
    assert_eq!(words[wish + 9], 1);
    assert_eq!(words[words[wish + 10] as usize..][..2], [9, 0.5_f32.to_bits()]);
}

#[test]
fn twins_have_the_sizes_of_the_device_structures() {
    assert_eq!(size_of::<Entry>(), 11 * 4);
    assert_eq!(size_of::<WishWords>(), 16 * 4);
    assert_eq!(size_of::<StepArgs>(), (19 + 5) * 8 + 6 * 4);
}
