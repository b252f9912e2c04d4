//! Takes lines of the log from any thread and writes them from one.
//!
//! A worker only puts its line into a queue. The writing thread takes what has
//! queued in one write: at once when the log was quiet, else [`PAUSE`] after
//! the last write, so that a busy node does some dozens of writes a second and
//! not one for each request. A reader of the log that stalls holds up that
//! thread and nobody else; past [`LINES`] lines are dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written at most.
const LINES: usize = 8192;
/// Bytes of one write, roughly.
const CHUNK: usize = 64 * 1024;
/// Between two writes while there is something to write.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the process waits at its end for the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// The end that lines are put into.
#[derive(Clone)]
pub(super) struct Sink {
    shared: Arc<Shared>,
    writer: Thread,
}

struct Shared {
    lines: ArrayQueue<Vec<u8>>,
    dropped: AtomicU64,
    /// The writing thread waits to be woken.
    asleep: AtomicBool,
    /// Nothing more comes: write what there is and end.
    closing: AtomicBool,
    closed: AtomicBool,
}

/// Starts a thread that writes to `out`.
pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<Sink> {
    let shared = Arc::new(Shared {
        lines: ArrayQueue::new(LINES),
        dropped: AtomicU64::new(0),
        asleep: AtomicBool::new(false),
        closing: AtomicBool::new(false),
        closed: AtomicBool::new(false),
    });
    let own = Arc::clone(&shared);
    let thread = thread::Builder::new()
        .name("log".into())
        .spawn(move || own.write_all(out))?;
    let writer = thread.thread().clone();
    Ok(Sink { shared, writer })
}

impl Sink {
    /// Writes what is left; waits at most [`LAST_LINES`] for it.
    pub(super) fn close(&self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        let step = Duration::from_millis(1);
        let mut left = LAST_LINES;
        while !self.shared.closed.load(Ordering::SeqCst) && !left.is_zero() {
            self.writer.unpark();
            thread::sleep(step);
            left = left.saturating_sub(step);
        }
    }

    fn put(&self, line: &[u8]) {
        if self.shared.lines.push(line.to_vec()).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        if self.shared.asleep.load(Ordering::SeqCst)
            && self.shared.asleep.swap(false, Ordering::SeqCst)
        {
            self.writer.unpark();
        }
    }
}

impl Shared {
    /// The writing thread. An error of the output loses lines and no more.
    fn write_all(&self, mut out: impl Write) {
        let mut chunk = Vec::new();
        loop {
            let closing = self.closing.load(Ordering::SeqCst);
            while chunk.len() < CHUNK
                && let Some(line) = self.lines.pop()
            {
                chunk.extend_from_slice(&line);
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                let told = format!(
                    "{{\"level\":\"WARN\",\"message\":\"lines of the log were dropped\",\
                     \"dropped\":{dropped},\"target\":\"{}\"}}\n",
                    module_path!()
                );
                chunk.extend_from_slice(told.as_bytes());
            }
            if !chunk.is_empty() {
                out.write_all(&chunk).and_then(|()| out.flush()).ok();
                chunk.clear();
                if !closing {
                    thread::sleep(PAUSE);
                }
                continue;
            }
            if closing {
                break;
            }
            self.asleep.store(true, Ordering::SeqCst);
            // A line that came just before is not seen by its own thread as
            // one to wake for.
            if self.lines.is_empty() && !self.closing.load(Ordering::SeqCst) {
                thread::park();
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
        self.closed.store(true, Ordering::SeqCst);
    }
}

/// Puts what is written in one piece as one line.
pub(super) struct Line<'a>(&'a Sink);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}
