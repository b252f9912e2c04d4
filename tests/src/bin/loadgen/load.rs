//! Sending the requests of a scenario: closed loop or open loop.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, interval, sleep, timeout};

use crate::connection::{CallError, Connection};
use crate::process::Usage;
use crate::samples::micros;
use crate::scenario::{Load, Request, Scenario, Workload, Wrong};

/// How long the answers under way at the end of a run may take before the run fails.
const FINISH: Duration = Duration::from_secs(20);
/// How late a tick may be and still be called on time: the timer rounds up to a millisecond, the wait for
/// the sockets below it does so again, and waking takes a moment.
const TIMER_GRAIN: Duration = Duration::from_millis(3);
/// Wrong answers that end a connection's part in the run.
const WRONG_MAX: u32 = 100;
/// Wrong answers that are told in full.
const WRONG_TOLD: usize = 3;

/// What is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// The process to measure.
    pub(crate) pid: Option<u32>,
    /// How long to send.
    pub(crate) duration: Duration,
}

/// The times of one right answer, from when its request was due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) first_byte_us: u32,
    pub(crate) total_us: u32,
}

/// Answers, counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) samples: Vec<Sample>,
    pub(crate) wrong: u32,
    /// The first few wrong answers.
    pub(crate) first_wrong: Vec<String>,
}

/// A run that reached its end.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// From the first request to the last answer.
    pub(crate) elapsed: Duration,
    /// CPU time of the measured processes meanwhile.
    pub(crate) cpu: Option<Duration>,
}

/// Why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("the first answer of a connection: {0}")]
    WarmUp(#[from] AnswerError),
    #[error("answers are missing {} s after the last request", FINISH.as_secs())]
    Unfinished,
    #[error("measured process: {0}")]
    Process(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Wrong(#[from] Wrong),
}

/// Runs `scenario` against `target`. Every connection has had an answer before the clock starts.
pub(crate) async fn run(scenario: Scenario, target: Target) -> Result<Outcome, LoadError> {
    let connections = match scenario.load() {
        Load::Idle => 0,
        Load::Closed { connections }
        | Load::Open {
            connections,
            per_second: _,
        } => connections,
    };
    let request = Arc::new(Request::new(scenario.workload(), target.address));
    let clients = warm_clients(connections, &request, target.address).await?;
    let before = target.pid.map(Usage::of).transpose()?;
    let start = Instant::now();
    let load = async {
        match scenario.load() {
            Load::Idle => {
                sleep(target.duration).await;
                Ok(Tally::default())
            }
            Load::Closed { connections: _ } => closed_loop(clients, start, target.duration).await,
            Load::Open {
                connections: _,
                per_second,
            } => open_loop(clients, per_second, target.duration).await,
        }
    };
    let limit = target.duration.saturating_add(FINISH);
    let finished = timeout(limit, load).await;
    let tally = finished.map_err(|_| LoadError::Unfinished)??;
    let elapsed = start.elapsed();
    let after = target.pid.map(Usage::of).transpose()?;
    Ok(Outcome {
        tally,
        elapsed,
        cpu: before
            .zip(after)
            .map(|(before, after)| after.cpu.saturating_sub(before.cpu)),
    })
}

/// Clients whose connections are open, through to the upstream.
async fn warm_clients(
    count: u32,
    request: &Arc<Request>,
    address: SocketAddr,
) -> Result<Vec<Client>, LoadError> {
    let first = Arc::new(Request::new(Workload::Plain { body_bytes: 0 }, address));
    let mut warming = JoinSet::new();
    for _ in 0..count {
        let mut client = Client::new(address, Arc::clone(&first));
        let request = Arc::clone(request);
        warming.spawn(async move {
            client.ask(Instant::now()).await?;
            client.request = request;
            client.answer_bytes = None;
            Ok::<_, AnswerError>(client)
        });
    }
    let mut clients = Vec::new();
    while let Some(warmed) = warming.join_next().await {
        clients.push(warmed??);
    }
    Ok(clients)
}

/// Every client asks again as soon as it has its answer, until `duration` after `start`.
async fn closed_loop(
    clients: Vec<Client>,
    start: Instant,
    duration: Duration,
) -> Result<Tally, LoadError> {
    let mut running = JoinSet::new();
    for mut client in clients {
        running.spawn(async move {
            let mut tally = Tally::default();
            while start.elapsed() < duration && tally.wrong < WRONG_MAX {
                let asked = client.ask(Instant::now()).await;
                tally.count(asked);
            }
            tally
        });
    }
    let mut total = Tally::default();
    while let Some(tally) = running.join_next().await {
        total.add(tally?);
    }
    Ok(total)
}

/// Requests fall due at a fixed rate and their time counts from then, so an answer that is late makes
/// those that wait behind it late too, as it would for real clients that come regardless.
async fn open_loop(
    clients: Vec<Client>,
    per_second: u32,
    duration: Duration,
) -> Result<Tally, LoadError> {
    let period = Duration::from_secs(1).checked_div(per_second);
    let mut ticks = interval(period.unwrap_or(Duration::from_secs(1)));
    let mut left = u64::from(per_second).saturating_mul(duration.as_secs());
    let mut idle = VecDeque::from(clients);
    let mut due = VecDeque::new();
    let mut running = JoinSet::new();
    let mut tally = Tally::default();
    loop {
        tokio::select! {
            scheduled = ticks.tick(), if left > 0 => {
                left = left.saturating_sub(1);
                due.push_back(due_time(scheduled, Instant::now()));
            }
            Some(finished) = running.join_next() => {
                let (client, asked) = finished?;
                idle.push_back(client);
                tally.count(asked);
            }
            else => return Ok(tally),
        }
        while !due.is_empty()
            && let Some(mut client) = idle.pop_front()
        {
            let since = due.pop_front().unwrap_or_else(Instant::now);
            running.spawn(async move {
                let asked = client.ask(since).await;
                (client, asked)
            });
        }
    }
}

/// When a request was due. A tick that is late by no more than the timer's own grain was not late: the
/// schedule has jitter, independent of the answers. One later than that waited for the processor.
fn due_time(scheduled: Instant, now: Instant) -> Instant {
    if now.saturating_duration_since(scheduled) > TIMER_GRAIN {
        scheduled
    } else {
        now
    }
}

/// A connection, the request it sends, and the length of its answers.
struct Client {
    connection: Connection,
    request: Arc<Request>,
    /// Every answer must be as long as the first.
    answer_bytes: Option<usize>,
}

impl Client {
    fn new(address: SocketAddr, request: Arc<Request>) -> Self {
        Self {
            connection: Connection::to(address),
            request,
            answer_bytes: None,
        }
    }

    /// Sends the request, checks the answer; the times count from `since`.
    async fn ask(&mut self, since: Instant) -> Result<Sample, AnswerError> {
        let answer = self.connection.call(&self.request.bytes).await?;
        self.request.check(answer.status, answer.body)?;
        let bytes = answer.body.len();
        let earlier = *self.answer_bytes.get_or_insert(bytes);
        if bytes != earlier {
            return Err(Wrong::Length { bytes, earlier }.into());
        }
        Ok(Sample {
            first_byte_us: micros(answer.first_byte.saturating_duration_since(since)),
            total_us: micros(answer.end.saturating_duration_since(since)),
        })
    }
}

impl Tally {
    fn count(&mut self, asked: Result<Sample, AnswerError>) {
        match asked {
            Ok(sample) => self.samples.push(sample),
            Err(error) => {
                self.wrong = self.wrong.saturating_add(1);
                if self.first_wrong.len() < WRONG_TOLD {
                    self.first_wrong.push(error.to_string());
                }
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.wrong = self.wrong.saturating_add(other.wrong);
        self.first_wrong.extend(other.first_wrong);
        self.first_wrong.truncate(WRONG_TOLD);
    }
}
