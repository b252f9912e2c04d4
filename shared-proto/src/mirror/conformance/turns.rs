//! Checks of a pool's limit and of its queue.

use std::cell::Cell;

use futures_util::future::join_all;

use super::holds::{SHORT, full, had, names, patient, place, take};
use super::{Backend, until};
use crate::mirror::hold::{Take, Taken};

/// However many want in at once, no more than the limit are, and all get their
/// turn.
pub async fn a_limit_is_never_exceeded(backend: &dyn Backend) {
    const LIMIT: u32 = 3;
    let mirror = backend.open().await;
    let inside = Cell::new(0_u32);
    let one = async |n: usize| {
        let holder = format!("h{n}");
        for _ in 0..3 {
            until(&*mirror, "a turn", async || {
                let taken = mirror.take(patient(&holder, LIMIT)).await.unwrap();
                matches!(taken, Taken::Held { .. }).then_some(())
            })
            .await;
            inside.set(inside.get() + 1);
            let held = names(&*mirror).await;
            assert!(held.contains(&holder));
            assert!(held.len() <= 3 && inside.get() <= LIMIT, "{held:?}");
            inside.set(inside.get() - 1);
            mirror.give_back(vec![place(&holder)]).await.unwrap();
        }
    };
    join_all((0..24).map(one)).await;
    assert_eq!(names(&*mirror).await, [""; 0]);
}

/// Who came first is let in first, and nobody overtakes those who wait.
pub async fn the_queue_is_fair(backend: &dyn Backend) {
    let mirror = backend.open().await;
    had(&*mirror, take("a", 1)).await;
    // Names whose order is not that of the queue.
    for (ahead, holder) in ["m", "z", "b", "q"].iter().enumerate() {
        let told = full(&*mirror, patient(holder, 1)).await;
        assert_eq!(usize::try_from(told), Ok(ahead));
    }
    assert_eq!(
        full(&*mirror, patient("z", 1)).await,
        1,
        "it keeps its place"
    );
    assert_eq!(full(&*mirror, take("new", 1)).await, 4);
    mirror.give_back(vec![place("a")]).await.unwrap();
    assert_eq!(
        full(&*mirror, take("new", 1)).await,
        4,
        "it does not overtake"
    );
    assert_eq!(
        full(&*mirror, patient("z", 1)).await,
        1,
        "nor does the second"
    );
    had(&*mirror, patient("m", 1)).await;
    assert_eq!(full(&*mirror, patient("z", 1)).await, 0);

    // With more room, those have it who are so near.
    assert_eq!(full(&*mirror, patient("q", 3)).await, 2);
    had(&*mirror, patient("b", 3)).await;
    assert_eq!(full(&*mirror, patient("q", 3)).await, 1);
    had(&*mirror, patient("z", 3)).await;
    assert_eq!(full(&*mirror, patient("q", 3)).await, 0);
    had(&*mirror, patient("q", 4)).await;
    assert_eq!(names(&*mirror).await, ["b", "m", "q", "z"]);
    let unlimited = Take {
        limit: None,
        ..take("new", 0)
    };
    had(&*mirror, unlimited).await;
}

/// A waiter that does not come back in time, or gives up, holds nobody up.
pub async fn waiters_lose_their_place(backend: &dyn Backend) {
    let mirror = backend.open().await;
    had(&*mirror, take("a", 1)).await;
    assert_eq!(full(&*mirror, patient("gives up", 1)).await, 0);
    assert_eq!(full(&*mirror, patient("w", 1)).await, 1);
    assert_eq!(full(&*mirror, take("gives up", 1)).await, 0);
    assert_eq!(full(&*mirror, patient("w", 1)).await, 0);
    mirror.give_back(vec![place("w")]).await.unwrap();

    let dies = Take {
        patience_ms: Some(SHORT),
        ..take("dies", 1)
    };
    assert_eq!(full(&*mirror, dies).await, 0);
    let mut ahead = full(&*mirror, patient("w", 1)).await;
    assert!(ahead <= 1);
    until(&*mirror, "the end of its patience", async || {
        ahead = full(&*mirror, patient("w", 1)).await;
        (ahead == 0).then_some(())
    })
    .await;
    assert_eq!(
        full(&*mirror, patient("dies", 1)).await,
        1,
        "at the end again"
    );
    mirror.give_back(vec![place("a")]).await.unwrap();
    assert_eq!(full(&*mirror, patient("dies", 1)).await, 1);
    had(&*mirror, patient("w", 1)).await;
}
