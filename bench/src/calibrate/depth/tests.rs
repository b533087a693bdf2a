use super::*;

/// A model in which `d` drafts at load `n` give `1 + d * gain(d)` tokens and cost `n * d` rows.
struct Curve {
    rows_free: f64,
    asked: Vec<(u32, u32)>,
}

impl Curve {
    fn total(&self, drafts: u32, in_flight: u32) -> f64 {
        let accepted: f64 = (1..=drafts).map(|it| 0.7_f64.powf(f64::from(it))).sum();
        let rows = f64::from(in_flight * (drafts + 1));
        f64::from(in_flight) * (1.0 + accepted) / (rows / self.rows_free).max(1.0)
    }
}

impl Drafting for Curve {
    async fn total_with(&mut self, drafts: u32, in_flight: u32, _: u32) -> Result<f64, String> {
        self.asked.push((drafts, in_flight));
        Ok(self.total(drafts, in_flight))
    }
}

async fn found(rows_free: f64, drafts_max: u32) -> (Table, Curve) {
    let mut curve = Curve { rows_free, asked: Vec::new() };
    let found = table(&mut curve, &[1, 2, 4, 8, 16, 32, 64], drafts_max, 3).await.unwrap();
    (found, curve)
}

#[tokio::test]
async fn the_table_follows_what_was_measured() {
    let (table, curve) = found(16.0, 5).await;
    assert_eq!(table, [(2, 5), (4, 3), (8, 1)]);
    for &(in_flight, drafts) in &table {
        let best = curve.total(drafts, in_flight);
        assert!((0..=5).all(|it| curve.total(it, in_flight) <= best), "{in_flight}");
    }
    assert_eq!(found(1e9, 2).await.0, [(64, 2)]);
    assert_eq!(found(0.5, 4).await.0, []);
    assert_eq!(found(16.0, 0).await.0, []);
}

#[tokio::test]
async fn no_more_runs_than_it_needs() {
    let (_, curve) = found(16.0, 5).await;
    // Beyond where none are best nothing is run, and never more drafts than were best before.
    assert!(curve.asked.iter().all(|it| it.1 <= 16));
    assert!(curve.asked.iter().all(|it| it.1 <= 4 || it.0 <= 3));
    assert_eq!(curve.asked.len(), 3 * (6 + 6 + 6 + 4 + 2));
}

struct Dead;

impl Drafting for Dead {
    async fn total_with(&mut self, _: u32, _: u32, _: u32) -> Result<f64, String> {
        Ok(0.0)
    }
}

#[tokio::test]
async fn a_run_without_tokens_ends_it() {
    let why = table(&mut Dead, &[1], 1, 1).await.unwrap_err();
    assert_eq!(why, "speculative made no tokens with 1 in flight");
}

#[test]
fn a_person_can_read_it() {
    let text = "Drafts: 5 up to 2 in flight, 1 up to 8 in flight, none beyond.";
    assert_eq!(sentence(&[(2, 5), (8, 1)]), text);
    assert_eq!(sentence(&[]), "Drafts: none at any load.");
}
