//! How it serves SOCKS 5.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;

use super::{How, Manner, Shared};

pub(super) async fn serve(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut start = [0; 2];
    client.read_exact(&mut start).await?;
    let mut methods = vec![0; usize::from(start[1])];
    client.read_exact(&mut methods).await?;
    let login = methods.contains(&2);
    if shared.manner() == Manner::Unauthorized || (shared.wanted.is_some() && !login) {
        shared.note(How::Socks, "", None);
        return client.write_all(&[5, 0xff]).await;
    }
    let mut credentials = None;
    if login {
        client.write_all(&[5, 2]).await?;
        client.read_exact(&mut [0; 1]).await?;
        let user = short_text(client).await?;
        let password = short_text(client).await?;
        let shown = format!("{user}:{password}");
        if shared
            .wanted
            .as_ref()
            .is_some_and(|wanted| *wanted != shown)
        {
            shared.note(How::Socks, "", Some(shown));
            return client.write_all(&[1, 1]).await;
        }
        credentials = Some(shown);
        client.write_all(&[1, 0]).await?;
    } else {
        client.write_all(&[5, 0]).await?;
    }
    let target = socks_target(client).await?;
    shared.note(How::Socks, &target, credentials);
    if shared.manner() == Manner::Refuse {
        return client.write_all(&[5, 4, 0, 1, 0, 0, 0, 0, 0, 0]).await;
    }
    let mut server = shared.connect(&target).await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(client, &mut server).await?;
    Ok(())
}

/// A byte of length and as many of text.
async fn short_text(client: &mut TcpStream) -> io::Result<String> {
    let mut length = [0; 1];
    client.read_exact(&mut length).await?;
    let mut text = vec![0; usize::from(length[0])];
    client.read_exact(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Reads a SOCKS request; its target as `host:port`.
async fn socks_target(client: &mut TcpStream) -> io::Result<String> {
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    let host = match head[3] {
        1 => {
            let mut ip = [0; 4];
            client.read_exact(&mut ip).await?;
            std::net::Ipv4Addr::from(ip).to_string()
        }
        3 => short_text(client).await?,
        _ => {
            let mut ip = [0; 16];
            client.read_exact(&mut ip).await?;
            format!("[{}]", std::net::Ipv6Addr::from(ip))
        }
    };
    let mut port = [0; 2];
    client.read_exact(&mut port).await?;
    Ok(format!("{host}:{}", u16::from_be_bytes(port)))
}
