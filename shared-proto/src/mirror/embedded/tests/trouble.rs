//! Holds while the disk fails, and a failed disk that is tried again.

use super::*;

#[tokio::test]
async fn holds_go_on_while_the_disk_fails() {
    let dir = TempDir::new().unwrap();
    with_one_record(&dir).await;
    let clock = clock();
    let store = broken(&dir, &clock, Millis::MAX);
    let revision = store.load(&key("a")).await.unwrap().unwrap().revision;
    let outcome = store.commit(put("b", Expected::Absent, 2)).await;
    assert!(matches!(outcome, Err(CommitError::Unreachable(_))));
    let take = Take {
        pool: Pool::Nodes,
        holder: Holder("n".into()),
        limit: Some(1),
        ttl_ms: 10,
        patience_ms: None,
        guard: Some(Guard {
            key: key("a"),
            revision,
        }),
        note: Bytes::new(),
    };
    let until = clock.now().plus(10);
    assert_eq!(store.take(take.clone()).await, Ok(Taken::Held { until }));
    clock.advance(10);
    assert_eq!(store.holders(&Pool::Nodes).await, Ok(vec![]));
    let fenced = Take {
        guard: Some(Guard {
            key: key("b"),
            revision,
        }),
        ..take
    };
    let taken = store.take(fenced).await;
    let at = clock.now();
    assert_eq!(taken, Ok(Taken::Fenced { newest: None, at }));
}

/// A take whose caller has gone before its turn would hold a place for nobody.
#[tokio::test]
async fn a_place_is_not_taken_for_a_caller_that_has_gone() {
    let table = Table::new(Keyspace::new("p"), 1_000, 0, vec![]);
    let mut board = Board::default();
    let take = || Take {
        pool: Pool::Nodes,
        holder: Holder("n".into()),
        limit: None,
        ttl_ms: 10,
        patience_ms: None,
        guard: None,
        note: Bytes::new(),
    };
    let (reply, answer) = oneshot::channel();
    drop(answer);
    HoldJob::Take(take(), reply).work(&mut board, &table, Millis::default());
    assert_eq!(board.holders(&Pool::Nodes, Millis::default()), []);
    let (reply, answer) = oneshot::channel();
    HoldJob::Take(take(), reply).work(&mut board, &table, Millis::default());
    assert!(answer.await.unwrap().is_ok());
    // Giving back counts all the same.
    let (reply, answer) = oneshot::channel();
    drop(answer);
    let place = Place {
        pool: Pool::Nodes,
        holder: Holder("n".into()),
    };
    HoldJob::GiveBack(vec![place], reply).work(&mut board, &table, Millis::default());
    assert_eq!(board.holders(&Pool::Nodes, Millis::default()), []);
}

/// A store whose file has been closed by a failure.
fn broken(dir: &TempDir, clock: &ManualClock, retry_at: Millis) -> Embedded {
    let (mut disk, contents) = Disk::open(dir.path()).unwrap();
    disk.fail();
    let clock = StoreClock::new(Arc::new(clock.clone()));
    let ring = Ring::new(contents.opened, 10, 10_000);
    let (head_tx, head) = watch::channel(ring.head());
    let (health_tx, health) = watch::channel(Health::Degraded {
        since: Millis::from_epoch_ms(7),
        why: "no space".into(),
    });
    let Contents { revision, rows, .. } = contents;
    let writer = Writer {
        table: Table::new(Keyspace::new("p"), 1 << 20, revision, rows),
        board: Board::default(),
        ring,
        disk: Some(disk),
        clock: clock.clone(),
        head: head_tx,
        health: health_tx,
        retry_at,
    };
    let (jobs, queue) = mpsc::channel(8);
    std::thread::spawn(move || writer.run(queue));
    Embedded {
        jobs,
        head,
        health,
        clock,
    }
}

async fn with_one_record(dir: &TempDir) {
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock())).unwrap();
    store.commit(put("a", Expected::Absent, 1)).await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_failed_disk_is_tried_again_and_recovers() {
    let dir = TempDir::new().unwrap();
    with_one_record(&dir).await;
    let clock = clock();
    let store = broken(&dir, &clock, clock.now().plus(RETRY_MS));
    let start = store.snapshot().await.unwrap();
    assert_eq!(start.records.len(), 1, "reads go on");
    let mut tail = store.tail(start.position).await.unwrap();
    let outcome = store.commit(put("b", Expected::Absent, 2)).await;
    let Err(CommitError::Unreachable(why)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(&*why.0, "no space");
    assert!(matches!(store.health(), Health::Degraded { .. }));

    clock.advance(RETRY_MS);
    store.commit(put("b", Expected::Absent, 2)).await.unwrap();
    assert_eq!(store.health(), Health::Up);
    assert_eq!(
        tail.next().await,
        Err(TailError::Gap),
        "the state was read anew"
    );
    assert_eq!(store.snapshot().await.unwrap().records.len(), 2);
    store.close().await.unwrap();
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock)).unwrap();
    assert_eq!(store.snapshot().await.unwrap().records.len(), 2);
}

#[tokio::test]
async fn a_disk_that_stays_broken_is_not_tried_without_pause() {
    let dir = TempDir::new().unwrap();
    with_one_record(&dir).await;
    let clock = clock();
    let store = broken(&dir, &clock, clock.now());
    let file = dir.path().join("mirror.redb");
    let away = dir.path().join("away");
    std::fs::rename(&file, &away).unwrap();
    let outcome = store.commit(put("b", Expected::Absent, 2)).await;
    let Err(CommitError::Unreachable(why)) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(why.0.contains("mirror.redb"), "{why}");
    assert!(!file.exists(), "no empty store takes the lost one's place");
    let Health::Degraded { since, .. } = store.health() else {
        panic!("healthy");
    };
    assert_eq!(since, Millis::from_epoch_ms(7), "since the first failure");
    std::fs::rename(&away, &file).unwrap();
    let outcome = store.commit(put("b", Expected::Absent, 2)).await;
    assert_eq!(outcome, Err(CommitError::Unreachable(why)), "not yet");
    clock.advance(RETRY_MS);
    store.commit(put("b", Expected::Absent, 2)).await.unwrap();
}
