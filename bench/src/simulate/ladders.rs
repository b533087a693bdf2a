//! Measured speeds of pairs, as data: (requests in flight on one instance, total tokens a second).

use router::calibration::Curve;

/// One pair: the same model on the same partition, with and without speculation.
#[derive(Clone, Debug)]
pub struct Ladder {
    pub name: String,
    pub speculative: Curve,
    pub throughput: Curve,
    /// (high, low) of one pair, where they are told rather than implied.
    pub thresholds: Option<(u32, u32)>,
    /// Speed of both instances at work over the sum of each alone; 1 when they share nothing.
    pub together: f64,
}

type Points = &'static [(u32, f64)];

/// Llama-3.1-8B on one H200, vLLM 0.26.0, bf16, plain decoding; sequences decoding, prompts apart.
const H200_8B: Points =
    &[(1, 206.0), (8, 1597.0), (32, 5858.0), (64, 10631.0), (128, 17632.0), (256, 23203.0)];
/// The same with EAGLE-3, three drafts, 2.85 tokens a round.
const H200_8B_EAGLE3: Points =
    &[(1, 492.0), (8, 3700.0), (32, 13027.0), (64, 18853.0), (128, 22318.0), (256, 24184.0)];
/// SmolLM2-135M-Instruct with its shipped head, one H200, vLLM 0.26.0, real acceptance, closed
/// loop, prompts included: plain, then three drafts and one.
const H200_135M: Points = &[
    (1, 542.0),
    (4, 1806.0),
    (16, 5653.0),
    (32, 7925.0),
    (64, 13551.0),
    (128, 21734.0),
    (240, 22829.0),
];
const H200_135M_K3: Points = &[
    (1, 573.0),
    (4, 2064.0),
    (16, 6177.0),
    (32, 12768.0),
    (64, 20852.0),
    (128, 13600.0),
    (240, 14173.0),
];
const H200_135M_K1: Points = &[
    (1, 572.0),
    (4, 2121.0),
    (16, 6664.0),
    (32, 12152.0),
    (64, 18144.0),
    (128, 22721.0),
    (240, 21046.0),
];
/// The default pair, each instance on one of two cores: `results/2026-11-29-cpu-pair`.
const CPU: Points = &[(1, 85.0), (2, 144.0), (4, 238.0), (8, 310.0), (16, 397.0)];
const CPU_EAGLE3: Points = &[(1, 106.0), (2, 180.0), (4, 272.0), (8, 346.0), (16, 308.0)];

/// Where the published pair is looked at: only its two ends were told.
const PUBLISHED_AT: [u32; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128, 256];

/// The hyperbola with `alone` tokens a second at one request and `saturated` beyond all bounds: a
/// step takes as long as one alone, and longer in proportion to what is in it.
fn published(alone: f64, saturated: f64) -> Curve {
    let half = saturated / alone - 1.0;
    let at = |n: u32| (n, saturated * f64::from(n) / (f64::from(n) + half));
    curve(PUBLISHED_AT.map(at).to_vec())
}

fn curve(points: Vec<(u32, f64)>) -> Curve {
    Curve::new(points).expect("the built-in points grow and are finite")
}

/// Everything built in. `published`: eight GPUs, 54 tok/s alone and 773 saturated without, 96 and
/// 354 with EAGLE-3.
pub fn built_in() -> Vec<Ladder> {
    let measured = |name: &str, speculative: Points, throughput: Points| Ladder {
        name: name.to_owned(),
        speculative: curve(speculative.to_vec()),
        throughput: curve(throughput.to_vec()),
        thresholds: None,
        together: 1.0,
    };
    let published = Ladder {
        name: "published".to_owned(),
        speculative: published(96.0, 354.0),
        throughput: published(54.0, 773.0),
        thresholds: None,
        together: 1.0,
    };
    vec![
        published,
        measured("h200-8b", H200_8B_EAGLE3, H200_8B),
        measured("h200-135m-k3", H200_135M_K3, H200_135M),
        measured("h200-135m-k1", H200_135M_K1, H200_135M),
        measured("cpu-pair", CPU_EAGLE3, CPU),
    ]
}
