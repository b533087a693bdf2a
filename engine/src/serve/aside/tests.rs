use std::sync::mpsc;

use super::*;

/// Work that never ends takes one place, not one for each request that starts it.
#[tokio::test]
async fn work_that_hangs_keeps_its_place() {
    let aside = Aside::new(2, Duration::from_millis(20));
    let (release, released) = mpsc::channel::<()>();
    let hangs = move || released.recv().is_ok();
    let refused = aside.run("messages", hangs).await.unwrap_err();
    assert!(matches!(refused, Refusal::Field { param, .. } if param == "messages"));
    // The other place still serves.
    assert_eq!(patient(&aside, || 7).await, 7);
    let (second, released) = mpsc::channel::<()>();
    let hangs = move || released.recv().is_ok();
    assert!(aside.run("prompt", hangs).await.is_err());
    for _ in 0..3 {
        let started = aside.run("prompt", || panic!("there is no place for it")).await;
        assert_eq!(started, Err::<(), _>(Refusal::Overloaded));
    }
    drop((release, second));
    assert_eq!(patient(&aside, || 8).await, 8);
}

/// The same as `run`, however busy the machine is.
async fn patient(aside: &Aside, work: impl FnOnce() -> u32 + Copy + Send + 'static) -> u32 {
    for _ in 0..1000 {
        if let Ok(done) = aside.run("prompt", work).await {
            return done;
        }
    }
    panic!("there never was a place");
}

#[tokio::test]
async fn work_that_panics_gives_its_place_back() {
    let aside = Aside::new(1, Duration::from_secs(60));
    for _ in 0..3 {
        let broken = aside.run::<()>("prompt", || panic!("on purpose")).await;
        assert_eq!(broken, Err(Refusal::Failed));
    }
    assert_eq!(aside.run("prompt", || 5).await, Ok(5));
}

/// A client that went away leaves its work behind, with its place.
#[tokio::test]
async fn work_of_a_client_that_is_gone_keeps_its_place() {
    let aside = Arc::new(Aside::new(1, Duration::from_millis(20)));
    let (release, released) = mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let mut client = task::JoinSet::new();
    let own = Arc::clone(&aside);
    client.spawn(async move {
        let hangs = move || {
            let _gone = begin.send(());
            released.recv().is_ok()
        };
        own.run("prompt", hangs).await
    });
    begun.await.unwrap();
    client.abort_all();
    assert_eq!(aside.run("prompt", || 1).await, Err(Refusal::Overloaded));
    drop(release);
    assert_eq!(patient(&aside, || 9).await, 9);
}
