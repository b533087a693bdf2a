//! The CUDA backend: a step is a few launches, or one replay of recorded work; what it yields is
//! read late. Several GPUs share a model as ranks, each with a part of every layer.
//!
//! Lengths, tokens and page tables live on the device, so the next step can be queued before the
//! last one's choices are read. Drafts are made, verified and accepted there; the host learns how
//! many tokens stand.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kernels::cuda::{Card, DeviceError, Facts};
use kernels::ops::matmul::Format;

use self::rank::Rank;
use self::ranks::{Follower, Order};
use self::shard::Shard;
pub use self::shelf::Told;
use self::sizes::check;
use crate::backend::{Backend, BackendError, Shape};
use crate::batch::plan::{StepChoices, StepPlan};
use crate::model::{self, HeadConfig, Model, ModelConfig};

mod deferred;
mod head;
mod layer;
mod rank;
mod ranks;
mod results;
mod send;
mod shard;
mod shelf;
mod sizes;
mod spans;
mod target;
mod way;
mod weights;

/// How the backend is to be laid out.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// One, or several that compute together.
    pub cards: Vec<Card>,
    /// Where kernels that were compiled at start are kept.
    pub cache: Option<PathBuf>,
    pub memory: KvMemory,
    /// How weights are stored, but for the embedding and what makes the target's logits.
    pub weights: Format,
    /// Longest text, in tokens; and the longest that there must be room for.
    pub context_max: u32,
    pub context_min: u32,
    pub rows_max: u32,
    pub lanes: u32,
    /// Drafts of one entry, whoever makes them.
    pub drafts_max: u32,
    /// How likely the draft at each place is kept, where that is only pretended; else empty.
    pub simulated: Vec<f32>,
    /// Whether steps are recorded and replayed, or launched one by one.
    pub records: bool,
    /// Folder through which engines of the same model on the same card share its weights.
    pub share: Option<PathBuf>,
}

impl CudaOptions {
    /// Whether a card is named twice, so that two ranks are on it: for checks of small steps, since
    /// each waits for the other and a large step of one could keep the other's from running.
    pub fn shares_a_card(&self) -> bool {
        self.cards.iter().any(|card| 1 < self.cards.iter().filter(|it| *it == card).count())
    }
}

/// Memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KvMemory {
    Bytes(u64),
    /// Of what is free once the weights are there.
    Fraction(f64),
    Pages(u32),
}

/// Sizes of a model and its draft head with random weights: for speed tests.
#[derive(Clone, Copy, Debug)]
pub struct Dummy<'a> {
    pub model: &'a ModelConfig,
    pub head: Option<&'a HeadConfig>,
}

/// Tensors of the model and of the draft head; none for random ones.
type Tensors<'a> = (Option<&'a TensorMap>, Option<&'a TensorMap>);
type TensorMap = BTreeMap<String, model::Tensor>;

/// A model on one GPU, or on several that compute each step together.
#[derive(Debug)]
pub struct CudaBackend {
    leader: Rank,
    /// The other ranks, each on a thread of its own.
    followers: Vec<Follower>,
}

impl From<DeviceError> for BackendError {
    fn from(error: DeviceError) -> Self {
        Self { detail: error.to_string() }
    }
}

/// Memory that one page takes on all GPUs together, with the draft layer's part when there is a
/// head.
pub fn kv_bytes_per_page(model: &ModelConfig, head: Option<&HeadConfig>) -> usize {
    sizes::page_bytes(model, head, Shard::WHOLE)
}

impl CudaBackend {
    /// Lays out weights and pages. The model itself is not needed after that.
    pub fn new(
        model: &Model,
        head: Option<&model::Head>,
        options: &CudaOptions,
    ) -> Result<Self, BackendError> {
        let sizes = Dummy { model: &model.config, head: head.map(|it| &it.config) };
        let ids = head.map_or(&[][..], |it| &it.target_ids);
        let tensors = (Some(&model.tensors), head.map(|it| &it.tensors));
        Self::build(sizes, tensors, ids, options)
    }

    /// Random weights of the given sizes.
    pub fn dummy(sizes: Dummy<'_>, options: &CudaOptions) -> Result<Self, BackendError> {
        let ids: Vec<u32> =
            sizes.head.map_or(Vec::new(), |it| (0..).take(it.draft_vocab).collect());
        Self::build(sizes, (None, None), &ids, options)
    }

    fn build(
        sizes: Dummy<'_>,
        tensors: Tensors<'_>,
        target_ids: &[u32],
        options: &CudaOptions,
    ) -> Result<Self, BackendError> {
        check(sizes.model, sizes.head, options)?;
        let seats = ranks::seats(sizes, options)?;
        let lay = |seat| Rank::new(seat, sizes, tensors, target_ids, options);
        let mut all = ranks::at_once(seats, &options.cards, lay)?;
        let pages = |rank: &Rank| rank.pages_there(options);
        let pages: Vec<u32> = all.iter().map(pages).collect::<Result<_, _>>()?;
        let pages = pages.into_iter().min().expect("there is a rank");
        all.iter_mut().try_for_each(|rank| rank.take_pages(pages, options))?;
        let mut all = all.into_iter().zip(&options.cards);
        let (leader, _) = all.next().expect("there is a rank");
        let follower = |(rank, card)| Follower::start(rank, card);
        Ok(Self { leader, followers: all.map(follower).collect::<Result<_, _>>()? })
    }

    /// Of the first GPU; the others are like it.
    pub fn facts(&self) -> &Facts {
        self.leader.device.facts()
    }

    /// What came of sharing the weights; `None` if they are this process's alone.
    pub fn shared(&self) -> Option<Told> {
        self.leader.shared.as_ref().map(|it| it.1)
    }

    /// Records the steps that decoding takes with so many drafts, for every batch.
    pub fn record_all(&mut self, depths: &[u32]) -> Result<(), BackendError> {
        for follower in &self.followers {
            follower.order(Order::Record(depths.to_vec()))?;
        }
        let own = self.leader.record_all(depths);
        ranks::agree(own, &self.followers, |_| true)
    }
}

impl Backend for CudaBackend {
    fn shape(&self) -> Shape {
        self.leader.shape
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        if !self.followers.is_empty() {
            let plan = Arc::new(plan.clone());
            for follower in &self.followers {
                follower.order(Order::Submit(Arc::clone(&plan)))?;
            }
        }
        let own = self.leader.submit(plan);
        own.map_err(|error| ranks::with_reasons(error, &self.followers))
    }

    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        for follower in &self.followers {
            follower.order(Order::Collect)?;
        }
        let own = self.leader.collect(choices);
        ranks::agree(own, &self.followers, |theirs| {
            (&theirs.tokens, &theirs.counts) == (&choices.tokens, &choices.counts)
        })
    }
}
