//! A fast upstream for benchmarks: chat completions over plain HTTP/1.1 with keep-alive.
//!
//! It stands behind whatever is measured, so it does as little as it can: one thread, no router, no
//! JSON, answers put together from bytes that were built at the start. What a request wants is written
//! in its `user` field (see [`reply`]), which every gateway passes on untouched.

mod reply;
mod request;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use clap::Parser;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::reply::{Ask, Replies, Stream};
use crate::request::Reader;

#[derive(Parser)]
#[command(about = "Answers chat completions from ready-made bytes; the upstream of scripts/bench")]
struct Args {
    /// Where to listen; port 0 takes a free one. The address taken is printed.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind(Args::parse().listen).await?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    let replies = Arc::new(Replies::new());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                connections.spawn(serve(accepted?.0, Arc::clone(&replies)));
            }
            // A connection that broke is its client's affair.
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers the requests of one connection in turn until the client leaves.
async fn serve(socket: TcpStream, replies: Arc<Replies>) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = Reader::new(socket);
    let mut out = Vec::new();
    while let Some(request) = reader.next().await? {
        out.clear();
        match Ask::of(request.body) {
            None => replies.refuse(&mut out),
            Some(Ask::Plain) => replies.plain(&mut out, request.body.len()),
            Some(Ask::Stream(stream)) if stream.interval.is_zero() => {
                replies.ready_stream(&mut out, stream);
            }
            Some(Ask::Stream(stream)) => {
                send_paced(reader.socket(), &replies, stream, &mut out).await?;
                continue;
            }
        }
        reader.socket().write_all(&out).await?;
    }
    Ok(())
}

/// Sends a stream one event per interval. The role and the first word go out together at once, as a
/// model's first token does, so the time to the first byte is the proxy's own.
async fn send_paced(
    socket: &mut TcpStream,
    replies: &Replies,
    stream: Stream,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    replies.stream_start(out);
    replies.stream_words(out, 1);
    socket.write_all(out).await?;
    let mut ticks = interval(stream.interval);
    ticks.tick().await; // the first tick is now
    for _ in 1..stream.words() {
        ticks.tick().await;
        out.clear();
        replies.stream_words(out, 1);
        socket.write_all(out).await?;
    }
    ticks.tick().await;
    out.clear();
    replies.stream_end(out);
    socket.write_all(out).await
}
