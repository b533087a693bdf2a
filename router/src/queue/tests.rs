use super::*;
use crate::config::Role;

fn waiter(target: Option<Role>) -> Waiter {
    let ask = Ask { target, light: false };
    Waiter { ask, tried: Tried::new(), sender: oneshot::channel().0 }
}

fn join(queue: &mut Queue, priority: Priority, target: Option<Role>) -> Option<Ticket> {
    queue.join(priority, waiter(target), 3).ok()
}

#[test]
fn priority_first_then_arrival() {
    let mut queue = Queue::default();
    let low = join(&mut queue, Priority::Low, None).unwrap();
    let first = join(&mut queue, Priority::Normal, None).unwrap();
    let second = join(&mut queue, Priority::Normal, None).unwrap();
    assert!(first < second && second < low);
    // Full: only a higher priority gets in, in place of the last of the lowest.
    assert!(join(&mut queue, Priority::Low, None).is_none());
    let high = join(&mut queue, Priority::High, None).unwrap();
    assert!(high < first);
    assert_eq!(queue.len(), 3);
    assert!(join(&mut queue, Priority::Normal, None).is_none());
    queue.leave(second);
    queue.leave(low);
    assert_eq!(queue.len(), 2);
}

#[test]
fn a_grant_goes_to_the_first_that_can_be_placed() {
    let mut queue = Queue::default();
    join(&mut queue, Priority::Normal, Some(Role::Speculative)).unwrap();
    join(&mut queue, Priority::Normal, Some(Role::Speculative)).unwrap();
    join(&mut queue, Priority::Normal, None).unwrap();
    let mut asked = 0;
    let only_throughput = |it: &Waiter| {
        asked += 1;
        (it.ask.target != Some(Role::Speculative)).then_some(())
    };
    let (granted, ()) = queue.grant(only_throughput).unwrap();
    assert_eq!(granted.ask.target, None);
    // The second that wants what the first was refused is not asked.
    assert_eq!(asked, 2);
    assert!(queue.grant(|_| None::<()>).is_none());
    assert_eq!(queue.len(), 2);
}

#[test]
fn a_light_request_is_asked_though_work_was_refused() {
    let mut queue = Queue::default();
    join(&mut queue, Priority::Normal, None).unwrap();
    let mut light = waiter(None);
    light.ask.light = true;
    queue.join(Priority::Normal, light, 3).unwrap();
    let (granted, ()) = queue.grant(|it| it.ask.light.then_some(())).unwrap();
    assert!(granted.ask.light);
}

#[test]
fn one_is_behind_those_who_want_the_same_and_may_go_first() {
    let mut queue = Queue::default();
    let ask = |target, light| Ask { target, light };
    let wanted = ask(Some(Role::Speculative), false);
    join(&mut queue, Priority::Normal, wanted.target).unwrap();
    assert!(!queue.is_behind(Priority::High, wanted));
    assert!(queue.is_behind(Priority::Normal, wanted) && queue.is_behind(Priority::Low, wanted));
    for other in [ask(None, false), ask(Some(Role::Throughput), false), ask(wanted.target, true)] {
        assert!(!queue.is_behind(Priority::Low, other));
    }
}

#[test]
fn no_room_at_all_means_no_queue() {
    let mut queue = Queue::default();
    assert!(queue.join(Priority::High, waiter(None), 0).is_err());
    assert!(queue.is_empty());
}
