use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn text(bytes: &str) -> Vec<TokenId> {
    bytes.bytes().map(|it| TokenId(it.into())).collect()
}

/// A sequence that has read all of `tokens` but the last.
fn read(pool: &mut PagePool, tokens: &[TokenId]) -> (PageTable, u32) {
    let mut table = PageTable::default();
    let mut found = 0;
    while pool.find(&mut table, tokens, 1) == Found::Now {
        found += pool.page_tokens();
    }
    let slots = u32::try_from(tokens.len()).unwrap() - 1;
    assert!(pool.reserve(&mut table, slots));
    pool.publish(&mut table, &tokens[..slots as usize], 0);
    (table, found)
}

fn found(pool: &mut PagePool, tokens: &str) -> u32 {
    let (mut table, found) = read(pool, &text(tokens));
    pool.release(&mut table);
    found
}

#[test]
fn full_pages_are_found_and_one_token_is_left() {
    let mut pool = PagePool::new(20, 4);
    assert_eq!(found(&mut pool, "abcdefghij"), 0);
    assert_eq!(found(&mut pool, "abcdefghij"), 8);
    assert_eq!(found(&mut pool, "abcdefgh"), 4);
    assert_eq!(found(&mut pool, "abcd"), 0);
    assert_eq!(found(&mut pool, "abcdXfghij"), 4);
    // The same tokens after other tokens are another content.
    assert_eq!(found(&mut pool, "XbcdefghYZ"), 0);
    pool.check_idle();
}

#[test]
fn texts_with_different_salts_share_nothing() {
    let mut pool = PagePool::new(20, 4);
    let mut hits = |salt| {
        let tokens = text("abcdefghij");
        let mut table = PageTable::new(salt);
        let mut found = 0;
        while pool.find(&mut table, &tokens, 1) == Found::Now {
            found += 1;
        }
        assert!(pool.reserve(&mut table, 9));
        pool.publish(&mut table, &tokens[..9], 0);
        // Preempted: what it finds afterwards is still its own.
        pool.release(&mut table);
        assert_eq!(pool.find(&mut table, &tokens, 1), Found::Now);
        pool.release(&mut table);
        found
    };
    let salts = [Salt::default(), Salt::from_digest([0; 16]), Salt::from_digest([7; 16])];
    assert_eq!(salts.map(&mut hits), [0, 0, 0]);
    assert_eq!(salts.map(&mut hits), [2, 2, 2]);
    pool.check_idle();
}

#[test]
fn a_page_in_use_is_shared_and_survives_its_first_owner() {
    let mut pool = PagePool::new(6, 4);
    let (mut first, _) = read(&mut pool, &text("abcdefghi"));
    let (mut second, hits) = read(&mut pool, &text("abcdefghi"));
    assert_eq!((hits, pool.free()), (8, 4));
    assert_eq!(first.pages(), second.pages());
    pool.release(&mut first);
    pool.check(2);
    assert_eq!((pool.free(), pool.cached()), (4, 0));
    pool.release(&mut second);
    assert_eq!((pool.free(), pool.cached()), (6, 2));
    pool.check_idle();
}

#[test]
fn the_longest_idle_page_goes_first_and_a_text_from_its_end() {
    let mut pool = PagePool::new(4, 2);
    assert_eq!(found(&mut pool, "aabbx"), 0);
    assert_eq!(found(&mut pool, "ccddx"), 0);
    // All pages are cached now. One is wanted: the end of the older text goes.
    assert_eq!(found(&mut pool, "eex"), 0);
    assert_eq!(found(&mut pool, "ccddx"), 4);
    assert_eq!(found(&mut pool, "aabbx"), 2);
    pool.check_idle();
}

#[test]
fn the_plan_that_writes_a_page_cannot_read_it() {
    let mut pool = PagePool::new(4, 2);
    let mut table = PageTable::default();
    assert!(pool.reserve(&mut table, 2));
    pool.publish(&mut table, &text("aa"), 7);
    let mut other = PageTable::default();
    assert_eq!(pool.find(&mut other, &text("aab"), 7), Found::Soon);
    assert_eq!(pool.find(&mut other, &text("aab"), 8), Found::Now);
    assert_eq!(pool.find(&mut other, &text("aab"), 8), Found::Not);
}

/// Two that compute the same text side by side, and one that leaves: the other goes on from what
/// can be found.
#[test]
fn twins_publish_one_text() {
    let mut pool = PagePool::new(8, 2);
    let mut twins = [PageTable::default(), PageTable::default()];
    for table in &mut twins {
        assert!(pool.reserve(table, 4));
        pool.publish(table, &text("aa"), 0);
    }
    let [first, second] = &mut twins;
    pool.publish(second, &text("aabb"), 0);
    pool.release(second);
    // Of the second's pages only the one with new content can be found.
    assert_eq!((pool.free(), pool.cached()), (6, 1));
    let mut third = PageTable::default();
    assert_eq!(pool.find(&mut third, &text("aabbc"), 1), Found::Now);
    assert_eq!(pool.find(&mut third, &text("aabbc"), 1), Found::Now);
    pool.release(first);
    pool.release(&mut third);
    pool.check_idle();
}

#[test]
fn reserving_is_all_or_nothing() {
    let mut pool = PagePool::new(3, 4);
    let mut table = PageTable::default();
    assert!(pool.reserve(&mut table, 5));
    assert!(!pool.reserve(&mut table, 13));
    assert_eq!((table.len(), pool.free()), (2, 1));
    assert!(pool.reserve(&mut table, 8));
    pool.trim(&mut table, 4);
    assert_eq!((table.len(), pool.free()), (1, 2));
}

/// What a random life of sequences does to a pool.
#[derive(Clone, Debug)]
enum Act {
    Start { letters: u8, len: usize },
    Leave(usize),
    Grow(usize, u32),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0_u8..8, 1_usize..20).prop_map(|(letters, len)| Act::Start { letters, len }),
        (0_usize..6).prop_map(Act::Leave),
        (0_usize..6, 0_u32..12).prop_map(|(which, by)| Act::Grow(which, by)),
    ]
}

proptest! {
    /// The books balance, and a page that is found holds exactly the text it was found for.
    #[test]
    fn pages_are_never_mixed_up(acts in proptest::collection::vec(act(), 1..60)) {
        let mut pool = PagePool::new(12, 3);
        let mut tables: Vec<(PageTable, u32)> = Vec::new();
        // What was last written to each page: the text from its start.
        let mut written: BTreeMap<PageId, Vec<TokenId>> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Start { letters, len } => {
                    let tokens: Vec<_> =
                        (0..len).map(|at| TokenId(u32::from(letters >> (at % 3)) & 1)).collect();
                    let mut table = PageTable::default();
                    while pool.find(&mut table, &tokens, 1) == Found::Now {
                        let end = table.len() as usize * 3;
                        let last = table.pages().last().expect("just found");
                        prop_assert_eq!(&written[last], &tokens[..end]);
                    }
                    let owned = table.len() as usize;
                    let slots = u32::try_from(len).expect("short");
                    if pool.reserve(&mut table, slots) {
                        for (at, page) in table.pages().iter().enumerate().skip(owned) {
                            written.insert(*page, tokens[..len.min(at * 3 + 3)].to_vec());
                        }
                        pool.publish(&mut table, &tokens, 0);
                        tables.push((table, slots));
                    } else {
                        pool.release(&mut table);
                    }
                }
                Act::Leave(which) if which < tables.len() => {
                    pool.release(&mut tables.swap_remove(which).0);
                }
                Act::Grow(which, by) if which < tables.len() => {
                    let (table, slots) = &mut tables[which];
                    let before = table.len() as usize;
                    if pool.reserve(table, *slots + by) {
                        for page in &table.pages()[before..] {
                            written.remove(page);
                        }
                        pool.trim(table, *slots);
                    }
                }
                Act::Leave(_) | Act::Grow(..) => {}
            }
            pool.check(tables.iter().map(|it| it.0.pages().len()).sum());
            let owned: std::collections::BTreeSet<PageId> =
                tables.iter().flat_map(|it| it.0.pages().iter().copied()).collect();
            prop_assert_eq!(owned.len() + pool.free() as usize, 12);
        }
        for (table, _) in &mut tables {
            pool.release(table);
        }
        pool.check_idle();
    }
}
