//! The default pair writes the same texts in both modes, at every depth, alone and in company.

use std::ops::Range;

use engine::batch::sampling::Sampling;
use engine::draft::depth::Depth;
use engine::draft::held::Held;
use engine::draft::{Drafter, Silent};
use kernels::cpu::Activations;
use tests::desk::{self, Lent, Order, Setting, Written};
use tests::golden::golden;
use tests::pair;

const END: u32 = 2;
const PAGES: u32 = 256;
const LANES: u32 = 8;

/// Prompts that end anywhere in a conversation: the golden ones, with the first tokens of their
/// answers. Those of one conversation begin alike. Half are greedy, half are not.
fn orders(cuts: Range<usize>, new_max: u32) -> Vec<Order> {
    let (rows, _) = golden();
    let mut orders = Vec::new();
    for cut in cuts {
        for row in &rows {
            let mut prompt = row.prompt.clone();
            prompt.extend(row.output.iter().take(cut * 4).filter(|it| **it != END));
            let index = u32::try_from(orders.len()).unwrap();
            let temperature = if index.is_multiple_of(2) { 0.0 } else { 0.8 };
            let sampling = Sampling {
                seed: u64::from(index),
                temperature,
                stop_tokens: vec![engine::batch::ids::TokenId(END)],
                ..Sampling::greedy()
            };
            orders.push(Order { sampling, arrives: index / 3, ..Order::new(prompt, new_max) });
        }
    }
    orders
}

fn wide(depth: u32) -> Setting {
    Setting {
        pages: PAGES,
        rows_max: 512,
        lanes: LANES,
        ahead_max: 0,
        prompt_rows_max: 256,
        depth: Depth::always(depth),
    }
}

/// Little more room than the longest text, and small chunks.
fn tight(depth: u32) -> Setting {
    Setting { pages: 24, rows_max: 67, prompt_rows_max: 13, ahead_max: 1, ..wide(depth) }
}

fn one_by_one(backend: &Lent, depth: u32, orders: &[Order]) -> Vec<Written> {
    let drafter =
        || -> Box<dyn Drafter> { if depth == 0 { Box::new(Silent) } else { Box::new(Held) } };
    let one = |order: &Order| {
        let order = Order { arrives: 0, ..order.clone() };
        desk::write(backend, &wide(depth), drafter(), &[order]).remove(0)
    };
    orders.iter().map(one).collect()
}

/// Every text as expected; says in a line what was compared.
#[track_caller]
fn compare(expected: &[Written], found: &[Written], how: &str) -> String {
    for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.tokens, found.tokens, "order {index}, {how}");
        assert_eq!(expected.finish, found.finish, "order {index}, {how}");
    }
    let kept: u32 = found.iter().flat_map(|it| &it.kept).sum();
    let tokens: usize = found.iter().map(|it| it.tokens.len()).sum();
    format!("{how}: {tokens} tokens in {} texts are the same, {kept} drafts kept", found.len())
}

fn check(orders: &[Order], depths: &[u32], alone: &[u32]) -> Vec<String> {
    let mut lines = Vec::new();
    let plain = Lent::new(pair::backend(Activations::Int8, false, PAGES, LANES));
    let expected = one_by_one(&plain, 0, orders);
    let company = desk::write(&plain, &tight(0), Box::new(Silent), orders);
    lines.push(compare(&expected, &company, "baseline, in company, tight"));
    let drafting = Lent::new(pair::backend(Activations::Int8, true, PAGES, LANES));
    for &depth in depths {
        for (setting, name) in [(wide(depth), "wide"), (tight(depth), "tight")] {
            let found = desk::write(&drafting, &setting, Box::new(Held), orders);
            let how = format!("{depth} drafts, in company, {name}");
            lines.push(compare(&expected, &found, &how));
        }
    }
    for &depth in alone {
        let found = one_by_one(&drafting, depth, orders);
        lines.push(compare(&expected, &found, &format!("{depth} drafts, alone")));
    }
    lines
}

#[test]
fn both_modes_write_the_same_texts() {
    let lines = check(&orders(1..2, 16)[..6], &[0, 1, 5], &[3]);
    println!("{}", lines.join("\n"));
}

#[test]
#[ignore = "an hour on two cores; its result is kept in bench/results"]
fn both_modes_write_the_same_texts_at_length() {
    let lines = check(&orders(0..10, 128), &[0, 1, 3, 5, 7], &[0, 1, 3, 5, 7]);
    println!("{}", lines.join("\n"));
}

/// The second time a prompt comes, its full pages are found and the same drafts are kept.
#[test]
fn found_pages_change_no_draft() {
    let backend = Lent::new(pair::backend(Activations::Int8, true, PAGES, LANES));
    let order = orders(2..3, 24).remove(0);
    let cached = u32::try_from((order.prompt.len() - 1) / 16 * 16).unwrap();
    let orders = [order.clone(), Order { arrives: 100, ..order }];
    let [first, second]: [Written; 2] =
        desk::write(&backend, &wide(3), Box::new(Held), &orders).try_into().unwrap();
    assert_eq!((first.cached, second.cached), (0, cached));
    assert_eq!((first.tokens, &first.kept), (second.tokens, &second.kept));
    assert!(0 < first.kept.iter().sum::<u32>(), "some drafts are kept");
}
