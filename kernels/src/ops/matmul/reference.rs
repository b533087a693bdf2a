//! Products in plain code, what the kernels are compared with.

/// Sums in f64, rounded once. weights: (outputs, inputs); x: (rows, inputs).
pub fn cpu(weights: &[f32], x: &[f32], inputs: usize) -> Vec<f32> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let rows = x.chunks_exact(inputs);
    #[expect(clippy::cast_possible_truncation, reason = "the reference rounds once, here")]
    rows.flat_map(|x| weights.chunks_exact(inputs).map(move |w| dot(w, x) as f32)).collect()
}

/// `1 / sqrt(mean(x^2) + eps)` of each row, (rows, inputs).
pub fn cpu_norm_scales(x: &[f32], inputs: usize, eps: f32) -> Vec<f32> {
    let scale = |x: &[f32]| {
        let squares: f64 = x.iter().map(|&it| f64::from(it).powi(2)).sum();
        #[expect(clippy::cast_possible_truncation, reason = "the reference rounds once, here")]
        {
            (1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()) as f32
        }
    };
    x.chunks_exact(inputs).map(scale).collect()
}

/// `silu(gate) * up`.
pub fn cpu_gated(gate: f32, up: f32) -> f32 {
    gate / (1.0 + (-gate).exp()) * up
}
