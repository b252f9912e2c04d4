//! Calls against a socket that plays the server.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{CallError, Connection};

/// What a call makes of a server that sends `pieces` one by one and closes.
async fn call(pieces: &[&str]) -> Result<(u16, String), CallError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        for piece in pieces {
            socket.write_all(piece.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        socket.shutdown().await.unwrap();
        socket
    };
    let client = async {
        let mut connection = Connection::to(address);
        let answer = connection.call(b"GET / HTTP/1.1\r\n\r\n").await?;
        assert!(answer.first_byte <= answer.end);
        Ok((answer.status, String::from_utf8_lossy(answer.body).into()))
    };
    tokio::join!(server, client).1
}

#[tokio::test]
async fn answers_with_a_length_or_in_chunks_are_read_whole() {
    let long = ["HTTP/1.1 200 OK\r\ncontent-le", "ngth: 5\r\n\r\nhe", "llo"];
    assert_eq!(call(&long).await.unwrap(), (200, "hello".into()));
    let chunked = [
        "HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r",
        "\n3\r\nllo\r\n0\r\n\r\n",
    ];
    assert_eq!(call(&chunked).await.unwrap(), (503, "hello".into()));
    let empty = ["HTTP/1.1 204 None\r\ncontent-length: 0\r\n\r\n"];
    assert_eq!(call(&empty).await.unwrap(), (204, String::new()));
}

#[tokio::test]
async fn answers_that_are_not_whole_are_errors() {
    let short = ["HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello"];
    assert!(matches!(call(&short).await, Err(CallError::Cut)));
    let unended = ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"];
    assert!(matches!(call(&unended).await, Err(CallError::Cut)));
    let endless = ["HTTP/1.1 200 OK\r\n\r\nhello"];
    assert!(matches!(call(&endless).await, Err(CallError::NoLength)));
    assert!(matches!(
        call(&["nonsense\r\n\r\n"]).await,
        Err(CallError::Head(_))
    ));
}
