//! Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in rotate-half order.

use super::rows::rows_per_chunk;
use super::simd::team::Team;

/// Cosines and sines of every position, made once.
#[derive(Debug)]
pub struct Rope {
    half: usize,
    /// (positions, 2 half): cosines, then sines.
    table: Vec<f32>,
}

impl Rope {
    /// For heads of `head_dim` at `positions` positions. `factors` divide the inverse frequencies,
    /// `head_dim / 2` of them or none.
    pub fn new(head_dim: usize, positions: usize, theta: f32, factors: &[f32]) -> Self {
        assert!(head_dim.is_multiple_of(2), "dimensions turn in pairs");
        let half = head_dim / 2;
        assert!(factors.is_empty() || factors.len() == half, "one factor a pair");
        let inverse: Vec<f32> = (0..half)
            .map(|i| {
                let exponent = (2 * i) as f32 / head_dim as f32;
                1.0 / theta.powf(exponent) / factors.get(i).unwrap_or(&1.0)
            })
            .collect();
        let mut table = Vec::with_capacity(positions * head_dim);
        for position in 0..positions {
            // The angle is rounded to f32 as reference implementations do; its sine is exact.
            let angles = inverse.iter().map(|it| f64::from(position as f32 * it));
            #[expect(clippy::cast_possible_truncation, reason = "the table rounds once, here")]
            {
                table.extend(angles.clone().map(|it| it.cos() as f32));
                table.extend(angles.map(|it| it.sin() as f32));
            }
        }
        Self { half, table }
    }

    /// Turns the first `heads` heads of each row.
    ///
    /// x: (rows, columns), of which the first `heads * head_dim` columns are heads one after the
    /// other; positions: (rows,), each below the number the table was made for.
    pub fn rotate(
        &self,
        team: &Team,
        x: &mut [f32],
        columns: usize,
        heads: usize,
        positions: &[u32],
    ) {
        let dim = 2 * self.half;
        assert_eq!(x.len(), columns * positions.len(), "one position a row");
        assert!(heads * dim <= columns, "the heads are in the row");
        let per_chunk = rows_per_chunk(team, positions.len(), heads * dim);
        team.run_windows(x, columns, (per_chunk, columns), &|window| {
            for row in window.rows() {
                let turns = &self.table[positions[row] as usize * dim..][..dim];
                let (cosines, sines) = turns.split_at(self.half);
                for head in window.row(row)[..heads * dim].chunks_exact_mut(dim) {
                    let (first, second) = head.split_at_mut(self.half);
                    for i in 0..self.half {
                        let (a, b) = (first[i], second[i]);
                        first[i] = a * cosines[i] - b * sines[i];
                        second[i] = b * cosines[i] + a * sines[i];
                    }
                }
            }
        });
    }
}
