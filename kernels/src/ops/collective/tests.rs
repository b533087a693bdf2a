use super::*;
use crate::ops::matmul;

const SIZES: CollectiveSizes = CollectiveSizes { rows: 5, columns: 100, choosers: 3, slice: 77 };

#[test]
fn nothing_in_the_memory_overlaps() {
    for ranks in 2..=RANKS_MAX {
        let Layout { inboxes, parts, sums, slice, found, bytes } = Layout::new(SIZES, ranks);
        let starts = [inboxes[0], inboxes[1], parts[0], parts[1], sums, slice, found, bytes];
        assert!(starts.iter().all(|it| it.is_multiple_of(ALIGN)));
        let sizes = starts.windows(2).map(|two| two[1] - two[0]).collect::<Vec<_>>();
        let inbox = ranks * FEW_VALUES * 8;
        let least = [inbox, inbox, 512 * 4, 512 * 4, 512 * 4, 77 * 4, 3 * 2 * ranks * 16];
        assert!(sizes.iter().zip(least).all(|(size, least)| least <= *size), "{sizes:?}");
        assert_eq!(starts[0], BLOCKS * RANKS_MAX * 4, "marks come first");
    }
}

#[test]
fn what_is_sent_fits_the_inbox() {
    for ranks in 2..=RANKS_MAX {
        let most = FEW_VALUES / (ranks - 1);
        assert!(is_few(most, ranks) && !is_few(most + 1, ranks));
        // Whole blocks are sent.
        assert!(most.next_multiple_of(BLOCK_VALUES) <= FEW_VALUES);
    }
}

#[test]
fn blocks_that_meet_have_a_mark_each() {
    for items in [1, 511, 512, 513, 1 << 20, 1 << 28] {
        let (blocks, ..) = meeting(items).blocks;
        assert!((1..=BLOCKS).contains(&(blocks as usize)), "{items}");
    }
}

/// Products over shares of the inputs, added up, are the product over all of them.
#[test]
fn shares_of_a_sum_are_the_whole() {
    let (rows, inputs, outputs) = (3, 320, 7);
    let value = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 1009.0 - 0.5;
    let weights: Vec<f32> = (0..outputs * inputs).map(value).collect();
    let x: Vec<f32> = (0..rows * inputs).map(|i| value(i + 5)).collect();
    let stream: Vec<f32> = (0..rows * outputs).map(|i| value(i + 9)).collect();
    let columns = |values: &[f32], of: std::ops::Range<usize>| -> Vec<f32> {
        values.chunks_exact(inputs).flat_map(|row| row[of.clone()].to_vec()).collect()
    };
    let part = |of: std::ops::Range<usize>| {
        matmul::cpu(&columns(&weights, of.clone()), &columns(&x, of.clone()), of.len())
    };
    let whole = cpu_add(&stream, &[matmul::cpu(&weights, &x, inputs)]);
    for shares in [vec![0..128, 128..320], vec![0..64, 64..128, 128..320]] {
        let parts: Vec<Vec<f32>> = shares.into_iter().map(part).collect();
        for (a, b) in cpu_add(&stream, &parts).iter().zip(&whole) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
}
