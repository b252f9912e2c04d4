//! Just enough of the Redis protocol for a test to look at a server, and to
//! write into it what no node would.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resp {
    /// `+OK` and the like.
    Simple(String),
    /// `-ERR ...`.
    Error(String),
    /// A whole number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Nothing.
    Nil,
    /// Several.
    Array(Vec<Self>),
}

impl Resp {
    /// It as text; panics when it is something else than one.
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Int(number) => number.to_string(),
            Self::Error(_) | Self::Nil | Self::Array(_) => panic!("not a text: {self:?}"),
        }
    }

    /// It as a number; panics when it is something else than one.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Simple(_) | Self::Bulk(_) => self.text().parse().unwrap(),
            Self::Error(_) | Self::Nil | Self::Array(_) => panic!("not a number: {self:?}"),
        }
    }

    /// Its parts; panics when it has none.
    pub fn array(self) -> Vec<Self> {
        match self {
            Self::Array(parts) => parts,
            Self::Simple(_) | Self::Error(_) | Self::Int(_) | Self::Bulk(_) | Self::Nil => {
                panic!("not several: {self:?}")
            }
        }
    }

    /// Every byte of data in it, one piece a line.
    pub fn flat(&self) -> String {
        match self {
            Self::Array(parts) => parts.iter().map(Self::flat).collect(),
            Self::Nil => String::new(),
            Self::Error(text) => format!("{text}\n"),
            Self::Simple(_) | Self::Int(_) | Self::Bulk(_) => format!("{}\n", self.text()),
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Link(BufReader<TcpStream>);

impl Link {
    /// Connects.
    pub async fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends one command and waits for its reply; an error of the server is a
    /// reply too.
    pub async fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<Resp> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes).await?;
        self.reply().await
    }

    async fn reply(&mut self) -> io::Result<Resp> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(bad)?;
        let number = || rest.parse::<i64>().map_err(|_| bad());
        match kind {
            "+" => Ok(Resp::Simple(rest.into())),
            "-" => Ok(Resp::Error(rest.into())),
            ":" => Ok(Resp::Int(number()?)),
            "$" => self.bulk(number()?).await,
            "*" => {
                let mut parts = Vec::new();
                for _ in 0..number()?.max(0) {
                    parts.push(Box::pin(self.reply()).await?);
                }
                Ok(Resp::Array(parts))
            }
            _ => Err(bad()),
        }
    }

    async fn bulk(&mut self, length: i64) -> io::Result<Resp> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(Resp::Nil);
        };
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).await?;
        bytes.truncate(length);
        Ok(Resp::Bulk(bytes))
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches("\r\n").to_owned())
    }
}

fn bad() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a Redis reply")
}

/// Every command that a server is sent, by anybody, from its start on.
#[derive(Debug)]
pub struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Monitor {
    /// Begins to listen on `link`.
    pub async fn start(mut link: Link) -> Self {
        let begun = link.call(&["MONITOR"]).await.unwrap();
        assert_eq!(begun, Resp::Simple("OK".into()));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let reader = tokio::spawn(async move {
            while let Ok(line) = link.line().await {
                kept.lock().unwrap().push(line);
            }
        });
        Self { lines, reader }
    }

    /// The commands so far, as the server prints them.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}
