//! Posts batches of spans to the collector, on the exporter's own thread.
//!
//! A collector that is away costs one line of the log when it goes and one
//! when it is back; never a request.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Runtime;

use crate::upstream::{CallError, Single};

/// The connection has to stand within this time.
const CONNECT_MS: u64 = 5000;
/// Bytes of the collector's answer that are read.
const MAX_ANSWER: usize = 64 * 1024;
/// Waits before a batch is sent again after a failure that may pass.
const REPEATS: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(750)];

/// The collector, and whether it took the last batch.
pub(super) struct Collector {
    /// Runs while a batch is posted: the exporter's thread has no runtime.
    runtime: Runtime,
    client: Single,
    timeout: Duration,
    away: AtomicBool,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("no answer in time")]
    Late,
    #[error("status {0}")]
    Status(StatusCode),
}

impl Collector {
    /// A collector that has `timeout` to take a batch.
    pub(super) fn new(timeout: Duration) -> Result<Self, Box<dyn std::error::Error>> {
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
            client: Single::new(CONNECT_MS)?,
            timeout,
            away: AtomicBool::new(false),
        })
    }

    async fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Refusal> {
        let posting = async {
            for wait in REPEATS {
                match self.once(request.clone()).await {
                    Err(refusal) if refusal.may_pass() => tokio::time::sleep(wait).await,
                    done => return done,
                }
            }
            self.once(request).await
        };
        let posted = tokio::time::timeout(self.timeout, posting).await;
        posted.unwrap_or(Err(Refusal::Late))
    }

    async fn once(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Refusal> {
        let answer = self.client.call(request, MAX_ANSWER).await?;
        if answer.status().is_success() {
            Ok(answer)
        } else {
            Err(Refusal::Status(answer.status()))
        }
    }

    /// One line for each change between here and away.
    fn tell(&self, refusal: Option<&Refusal>) {
        let was_away = self.away.swap(refusal.is_some(), Ordering::Relaxed);
        match refusal {
            Some(refusal) if !was_away => tracing::warn!(
                reason = %refusal,
                "the collector does not take traces; they are dropped until it does"
            ),
            None if was_away => tracing::info!("the collector takes traces again"),
            Some(_) | None => {}
        }
    }
}

impl Refusal {
    fn may_pass(&self) -> bool {
        match self {
            Self::Call(_) => true,
            Self::Late => false,
            Self::Status(status) => matches!(status.as_u16(), 429 | 502..=504),
        }
    }
}

type Posting<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Collector {
    /// Blocks: it is called on the exporter's own thread, whose only work it is.
    fn send_bytes<'a, 's>(&'a self, request: Request<Bytes>) -> Posting<'s>
    where
        'a: 's,
        Self: 's,
    {
        let posted = self.runtime.block_on(self.post(request));
        self.tell(posted.as_ref().err());
        Box::pin(ready(posted.map_err(HttpError::from)))
    }
}
