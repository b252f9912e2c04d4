//! Transactions that have to reach replicas.
//!
//! `WAIT` asks about the writes of its own connection and holds up everything
//! behind it, so these transactions have a connection to themselves: a task
//! sends what has queued in one go, and one `WAIT` behind it serves them all.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, RedisError, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::dial::Party;
use super::fault::Fault;
use super::link::{Link, Shared, closed};
use super::reply::Answer;
use crate::clock::Millis;
use crate::mirror::Unreachable;

/// Transactions that share a `WAIT`, and that wait for their turn, at most.
const MAX_TOGETHER: usize = 64;
pub(super) const MAX_QUEUED: usize = 256;

/// A transaction's call, and who waits for its answer.
pub(super) struct Confirmed {
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<Vec<u8>>,
    pub(super) wanted: u32,
    pub(super) reply: oneshot::Sender<Result<(Answer, Millis, u32), Unreachable>>,
}

/// Sends a transaction this way; its answer, and how many replicas had it in
/// time.
pub(super) async fn transact(
    shared: &Shared,
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
    wanted: u32,
) -> Result<(Answer, Millis, u32), Unreachable> {
    let (reply, answer) = oneshot::channel();
    let job = Confirmed {
        keys,
        args,
        wanted,
        reply,
    };
    let sent = async {
        shared.confirmed.send(job).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    };
    // Its own round, and the one that was under way when it came.
    let limit = round_limit(shared).saturating_mul(2);
    match timeout(limit, sent).await {
        Ok(outcome) => outcome,
        Err(_) => Err(shared.late().into()),
    }
}

fn round_limit(shared: &Shared) -> Duration {
    let options = &shared.options;
    options.deadline.saturating_add(options.replicas_within)
}

/// The task.
pub(super) async fn confirm(shared: Arc<Shared>, mut jobs: mpsc::Receiver<Confirmed>) {
    let mut kept: Option<(u64, MultiplexedConnection)> = None;
    let mut taken = Vec::with_capacity(MAX_TOGETHER);
    while jobs.recv_many(&mut taken, MAX_TOGETHER).await > 0 {
        taken.retain(|job: &Confirmed| !job.reply.is_closed());
        match connected(&shared, &mut kept).await {
            Ok((link, connection)) => round(&shared, &link, connection, &mut taken).await,
            Err(why) => {
                for job in taken.drain(..) {
                    job.reply.send(Err(why.clone())).ok();
                }
            }
        }
    }
}

/// A connection to the server that all others are with too.
async fn connected(
    shared: &Shared,
    kept: &mut Option<(u64, MultiplexedConnection)>,
) -> Result<(Arc<Link>, MultiplexedConnection), Unreachable> {
    let link = shared.link(shared.end(Instant::now())).await?;
    if let Some((_, connection)) = kept.as_ref().filter(|(of, _)| *of == link.generation) {
        return Ok((link, connection.clone()));
    }
    let patience = round_limit(shared);
    let opened = shared.dial.open(&link.host, Party::Server, patience).await;
    let connection = opened.map_err(|fault| shared.failed(link.generation, fault))?;
    *kept = Some((link.generation, connection.clone()));
    Ok((link, connection))
}

async fn round(
    shared: &Shared,
    link: &Link,
    mut connection: MultiplexedConnection,
    jobs: &mut Vec<Confirmed>,
) {
    let Some(wanted) = jobs.iter().map(|job| job.wanted).max() else {
        return;
    };
    let mut pipeline = Pipeline::new();
    for job in jobs.iter() {
        // In full: a forgotten hash could only be mended behind the `WAIT`.
        let command = pipeline.cmd("EVAL").arg(&shared.scripts.transact.text);
        command.arg(job.keys.len()).arg(&job.keys);
        for arg in &job.args {
            command.arg(arg.as_slice());
        }
    }
    let ms = u64::try_from(shared.options.replicas_within.as_millis()).unwrap_or(u64::MAX);
    pipeline.cmd("WAIT").arg(wanted).arg(ms).ignore_errors();
    let asked = Instant::now();
    let end = asked.checked_add(round_limit(shared)).unwrap_or(asked);
    let sent = pipeline.query_async::<Vec<Result<Value, RedisError>>>(&mut connection);
    let fail = |fault| shared.failed(link.generation, fault);
    let mut replies = match timeout_at(end, sent).await {
        Ok(Ok(replies)) => replies.into_iter(),
        Ok(Err(error)) => return refuse(jobs, &fail(Fault::of(&error))),
        Err(_) => return refuse(jobs, &fail(shared.late())),
    };
    let got = match replies.next_back() {
        Some(Ok(Value::Int(got))) => u32::try_from(got).unwrap_or(0),
        Some(Err(error)) => return refuse(jobs, &fail(Fault::of(&error))),
        _ => return refuse(jobs, &fail(Fault::odd())),
    };
    for job in jobs.drain(..) {
        let answer = match replies.next() {
            Some(Ok(value)) => shared.answered(value, asked),
            Some(Err(error)) => Err(Fault::of(&error)),
            None => Err(Fault::odd()),
        };
        if answer.is_ok() {
            shared.accepted(link.generation);
        }
        let answer = answer.map(|(answer, at)| (answer, at, got)).map_err(fail);
        job.reply.send(answer).ok();
    }
}

fn refuse(jobs: &mut Vec<Confirmed>, why: &Unreachable) {
    for job in jobs.drain(..) {
        job.reply.send(Err(why.clone())).ok();
    }
}
