use super::*;

const LLAMA: Sizes =
    Sizes { hidden: 4096, intermediate: 14_336, heads: 32, kv_heads: 8, head_dim: 128, eps: 1e-5 };

/// Of SmolLM2: three heads of keys and values.
const SMALL: Sizes =
    Sizes { hidden: 576, intermediate: 1536, heads: 9, kv_heads: 3, head_dim: 64, eps: 1e-5 };

/// Every thing has one rank.
fn covers(parts: impl Iterator<Item = Range<usize>>, len: usize) {
    let end = parts.fold(0, |end, part| {
        assert_eq!(part.start, end);
        assert!(!part.is_empty());
        part.end
    });
    assert_eq!(end, len);
}

#[test]
fn shares_are_all_there_is() {
    for (sizes, most) in [(LLAMA, 8), (SMALL, 3)] {
        for ranks in 1..=most {
            let all = || Shard::all(ranks);
            covers(all().map(|it| it.kv_heads(sizes.kv_heads)), sizes.kv_heads);
            covers(all().map(|it| it.heads(sizes)), sizes.heads);
            covers(all().map(|it| it.intermediate(sizes.intermediate)), sizes.intermediate);
            for vocab in [49_152, 128_256, 50_257] {
                covers(all().map(|it| it.tokens(vocab)), vocab);
                let starts = token_starts(ranks, vocab);
                covers(starts.windows(2).map(|it| it[0]..it[1]), vocab);
            }
        }
    }
}

#[test]
fn parts_keep_groups_and_units_whole() {
    for (sizes, most) in [(LLAMA, 8), (SMALL, 3)] {
        for shard in (1..=most).flat_map(Shard::all) {
            let own = shard.sizes(sizes);
            assert_eq!(own.group(), sizes.group());
            assert_eq!((own.hidden, own.head_dim), (sizes.hidden, sizes.head_dim));
            assert!(own.intermediate.is_multiple_of(UNIT));
            assert!((own.heads * own.head_dim).is_multiple_of(UNIT));
        }
    }
    let halves: Vec<Sizes> = Shard::all(2).map(|it| it.sizes(SMALL)).collect();
    assert_eq!(halves.iter().map(|it| it.kv_heads).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(Shard::WHOLE.sizes(LLAMA).intermediate, LLAMA.intermediate);
}

#[test]
fn too_many_ranks_are_refused() {
    assert_eq!(Shard::refuses(8, LLAMA), None);
    assert_eq!(Shard::refuses(3, SMALL), None);
    let why = Shard::refuses(4, SMALL).unwrap();
    assert_eq!(why, "4 GPUs cannot share 3 heads of keys and values");
    let narrow = Sizes { intermediate: 128, ..LLAMA };
    assert!(Shard::refuses(4, narrow).unwrap().contains("2 units"));
}

#[test]
fn all_ranks_cut_texts_by_the_same_number() {
    for (sizes, most) in [(LLAMA, 8), (SMALL, 3)] {
        for ranks in 1..=most {
            let own = Shard::all(ranks).map(|it| it.kv_heads(sizes.kv_heads).len()).max();
            for shard in Shard::all(ranks) {
                assert_eq!(Some(shard.kv_heads_most(sizes.kv_heads)), own, "{shard:?}");
            }
        }
    }
}
