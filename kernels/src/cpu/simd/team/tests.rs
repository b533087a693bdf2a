use super::*;

fn pair() -> Team {
    // Both on one core: slow, but every machine has it, and threads are descheduled in mid-job.
    Team::new(&[0, 0]).unwrap()
}

#[test]
fn every_chunk_is_done_once() {
    let team = pair();
    for chunks in [0, 1, 2, 3, 17, 1000] {
        let counts: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
        team.run(chunks, &|chunk| {
            counts[chunk].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|it| it.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn many_short_jobs_see_only_their_own_data() {
    let team = pair();
    for job in 0..3000_usize {
        let mut out = vec![0; 1 + job % 7];
        team.run_windows(&mut out, 1, (1, 1), &|window| {
            let row = window.rows().start;
            window.row(row)[0] = job + row;
        });
        assert!(out.iter().enumerate().all(|(row, &it)| it == job + row));
    }
}

#[test]
fn windows_cover_the_array() {
    let team = pair();
    let mut out = vec![0; 7 * 10];
    team.run_windows(&mut out, 10, (2, 4), &|window| {
        for row in window.rows() {
            let start = window.columns().start;
            for (i, it) in window.row(row).iter_mut().enumerate() {
                *it += 1 + row * 10 + start + i;
            }
        }
    });
    assert!(out.iter().enumerate().all(|(i, &it)| it == 1 + i));
}

#[test]
fn a_panic_is_passed_on_and_the_team_lives() {
    let team = pair();
    let result = catch_unwind(AssertUnwindSafe(|| {
        team.run(100, &|chunk| assert!(chunk != 37, "thirty-seven"));
    }));
    assert!(result.is_err());
    let done = AtomicUsize::new(0);
    team.run(100, &|_| {
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 100);
}

#[test]
fn cores_that_are_not_there() {
    assert!(matches!(Team::new(&[]), Err(TeamError::NoCores)));
    let error = Team::new(&[0, 1_000_000]).unwrap_err();
    assert!(error.to_string().starts_with("cannot run on core 1000000"));
}
