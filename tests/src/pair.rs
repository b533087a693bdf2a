//! The default pair: target and draft head, fetched and read once for all tests.

use std::sync::OnceLock;

use engine::backend::cpu::{CpuBackend, CpuOptions};
use engine::model::{Head, Model, load_head, load_model};
use kernels::cpu::Activations;

/// Target and head.
#[derive(Debug)]
pub struct Pair {
    pub model: Model,
    pub head: Head,
}

/// Reads the pair; fetches the target the first time.
pub fn pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        let path = deploy::fetch::default_model(&mut |_| ()).expect("the default model is fetched");
        let model = load_model(&path).expect("the default model is right");
        let folder = deploy::head::shipped().expect("the source tree has the head");
        let loaded = load_head(&folder, &model.config, None).expect("the shipped head is right");
        Pair { model, head: loaded.head }
    })
}

/// A backend on two cores, or one where there are not more.
pub fn backend(activations: Activations, with_head: bool, pages: u32, lanes: u32) -> CpuBackend {
    let pair = pair();
    let head = with_head.then_some(&pair.head);
    backend_of(&pair.model, head, activations, (pages, lanes))
}

/// The same of another model.
pub fn backend_of(
    model: &Model,
    head: Option<&Head>,
    activations: Activations,
    (pages, lanes): (u32, u32),
) -> CpuBackend {
    let new = |cores| {
        let options = CpuOptions { cores, activations, pages, rows_max: 1024, lanes, held_max: 8 };
        CpuBackend::new(model, head, &options)
    };
    new(vec![0, 1]).or_else(|_| new(vec![0])).expect("the model fits")
}
