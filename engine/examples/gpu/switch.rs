//! What it costs to switch between plain steps and rounds of three drafts: never, always, and up
//! and down ten times a second, by one engine.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use engine::backend::cuda::{CudaBackend, Dummy};
use engine::batch::sampling::Sampling;
use engine::clock;

use crate::Layout;
use crate::drive::{Drive, Sometimes};
use crate::steps::{self, Shape};

const BATCHES: &[usize] = &[1, 16, 64];
/// Up and down ten times a second.
const HALF: Duration = Duration::from_millis(50);
const ROUNDS: usize = 3;

/// When there are drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Never,
    Always,
    Turns,
}

/// Steps of the middle of a run, while every text is being written.
#[derive(Clone, Copy, Debug, Default)]
struct Middle {
    plain: f64,
    drafted: f64,
    ms: f64,
}

/// Of the shapes that are named, or of all if none is.
pub(crate) fn time(layout: &Layout, wanted: &[&str]) -> Result<(), Box<dyn Error>> {
    for shape in steps::shapes(wanted) {
        let (model, head) = (shape.model(), shape.head());
        let dummy = Dummy { model: &model, head: Some(&head) };
        let mut backend = CudaBackend::dummy(dummy, &steps::options(layout, 640))?;
        backend.record_all(&[0, 3])?;
        let when = Rc::new(Cell::new(When::Never));
        let (asked, start) = (Rc::clone(&when), clock::now());
        let turn = move || (clock::now() - start).as_millis() / HALF.as_millis();
        let drafter = Sometimes(move || match asked.get() {
            When::Never => false,
            When::Always => true,
            When::Turns => turn() % 2 == 1,
        });
        let mut drive = Drive::with(backend, Box::new(drafter), 3);
        for &batch in BATCHES {
            println!("{} batch {batch}: {}", shape.name, one(&mut drive, &when, shape, batch)?);
        }
    }
    Ok(())
}

fn one(
    drive: &mut Drive,
    when: &Cell<When>,
    shape: &Shape,
    batch: usize,
) -> Result<String, Box<dyn Error>> {
    let mut all = [Middle::default(); 3];
    for _ in 0..ROUNDS {
        for (it, sum) in [When::Never, When::Always, When::Turns].into_iter().zip(&mut all) {
            when.set(it);
            drive.texts(&steps::prompts(shape, batch, 128), batch, 448, &Sampling::greedy())?;
            let of = drive.times.len() / 3..drive.times.len() * 2 / 3;
            let drafted = drive.drafted[of.clone()].iter().filter(|it| **it).count() as f64;
            sum.plain += of.len() as f64 - drafted;
            sum.drafted += drafted;
            sum.ms += drive.times[of].iter().map(|it| it.as_secs_f64() * 1e3).sum::<f64>();
        }
    }
    let [never, always, turns] = all;
    let (plain, drafted) = (never.ms / never.plain, always.ms / always.drafted);
    let expected = turns.plain * plain + turns.drafted * drafted;
    Ok(format!(
        "{plain:.3} ms a plain step, {drafted:.3} a round; in turns {} and {} of them in {:.1} ms, \
         {:+.2} % of what they take apart",
        turns.plain,
        turns.drafted,
        turns.ms,
        (turns.ms / expected - 1.0) * 100.0,
    ))
}
