//! How it serves HTTP.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};
use tokio::net::TcpStream;

use super::{How, Manner, Shared};

/// The head of a request, without its last empty line.
struct Head {
    method: String,
    uri: String,
    /// Every other line, each with its end, but those that are for the proxy.
    fields: String,
    credentials: Option<String>,
    length: usize,
}

impl Head {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let mut first = lines.next().unwrap_or("").split(' ');
        let mut word = || first.next().unwrap_or("").to_owned();
        let mut head = Self {
            method: word(),
            uri: word(),
            fields: String::new(),
            credentials: None,
            length: 0,
        };
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            match name.to_ascii_lowercase().as_str() {
                "proxy-authorization" => head.credentials = Some(value.trim().to_owned()),
                "proxy-connection" => {}
                name => {
                    if name == "content-length" {
                        head.length = value.trim().parse().unwrap_or(0);
                    }
                    head.fields.extend([line, "\r\n"]);
                }
            }
        }
        head
    }

    /// Whom it is for, and the path there.
    fn target(&self) -> (&str, &str) {
        let absolute = self.uri.strip_prefix("http://").unwrap_or(&self.uri);
        match absolute.find('/') {
            Some(at) => absolute.split_at(at),
            None => (absolute, "/"),
        }
    }
}

/// Reads up to the end of a head; `None` once the peer has closed. `read` holds
/// what came beyond it.
async fn head(
    client: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
) -> io::Result<Option<Head>> {
    loop {
        if let Some(end) = read.windows(4).position(|at| at == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&read[..end]).into_owned();
            read.drain(..end + 4);
            return Ok(Some(Head::parse(&text)));
        }
        if client.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
}

pub(super) async fn serve(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut read = Vec::new();
    let Some(first) = head(client, &mut read).await? else {
        return Ok(());
    };
    let target = first.target().0.to_owned();
    let how = if first.method == "CONNECT" {
        How::Tunnel
    } else {
        How::Whole
    };
    if !shared.note(how, &target, first.credentials.clone()) {
        let answer = "HTTP/1.1 407 Proxy Authentication Required\r\n\
            proxy-authenticate: Basic realm=\"x\"\r\ncontent-length: 0\r\n\r\n";
        return client.write_all(answer.as_bytes()).await;
    }
    if shared.manner() == Manner::Refuse {
        let answer = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n";
        return client.write_all(answer).await;
    }
    let mut server = shared.connect(&target).await?;
    if how == How::Tunnel {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        server.write_all(&read).await?;
        copy_bidirectional(client, &mut server).await?;
        return Ok(());
    }
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let asking = async {
        let mut next = Some(first);
        while let Some(request) = next {
            let (_, path) = request.target();
            let text = format!(
                "{} {path} HTTP/1.1\r\n{}\r\n",
                request.method, request.fields
            );
            to_server.write_all(text.as_bytes()).await?;
            while read.len() < request.length {
                if from_client.read_buf(&mut read).await? == 0 {
                    return Ok(());
                }
            }
            let body: Vec<u8> = read.drain(..request.length).collect();
            to_server.write_all(&body).await?;
            next = head(&mut from_client, &mut read).await?;
        }
        io::Result::Ok(())
    };
    // Whichever side closes first ends both.
    tokio::select! {
        asked = asking => asked,
        answered = copy(&mut from_server, &mut to_client) => answered.map(drop),
    }
}
