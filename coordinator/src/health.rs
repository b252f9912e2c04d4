//! Asks a running process whether it is well, over plain HTTP: the health check
//! of an image that has no shell and no other program.

use std::fmt::Write as _;
use std::io::Write as IoWrite;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Most bytes of an answer that are read.
const MAX_ANSWER: u64 = 64 * 1024;
/// Most characters of an answer that are shown.
const SHOWN: usize = 512;
/// How long one answer may take.
const DEADLINE: Duration = Duration::from_secs(4);
/// How long one answer of a model may take.
const MODEL_DEADLINE: Duration = Duration::from_secs(30);

/// One request, which 200 answers well.
#[derive(Clone, Debug)]
pub struct Question {
    /// What messages call it.
    name: String,
    /// Everything between the first line and `Host`, with its line ends, and the body.
    head: String,
    body: String,
    deadline: Duration,
}

impl Question {
    /// Asks for `path`.
    pub fn get(path: &str) -> Self {
        Self {
            name: path.to_owned(),
            head: format!("GET {path} HTTP/1.0\r\n"),
            body: String::new(),
            deadline: DEADLINE,
        }
    }

    /// Asks `model` for a short answer, with a client's key if there is one.
    pub fn completion(model: &str, key: Option<&str>) -> Self {
        let body = serde_json::json!({
            "model": model,
            "messages": [{"role": "user", "content": "ping"}],
        })
        .to_string();
        // A key with a line break would be a header of its own; none has one.
        let key = key.map(|key| key.trim().replace(['\r', '\n'], ""));
        let key = key.map_or_else(String::new, |key| {
            format!("Authorization: Bearer {key}\r\n")
        });
        let length = body.len();
        Self {
            name: model.to_owned(),
            head: format!(
                "POST /v1/chat/completions HTTP/1.0\r\n{key}Content-Type: application/json\r\n\
                 Content-Length: {length}\r\n"
            ),
            body,
            deadline: MODEL_DEADLINE,
        }
    }
}

/// Asks `address` everything in turn and prints what it said; succeeds when
/// every answer was 200.
pub fn tell(address: &str, questions: &[Question]) -> ExitCode {
    let asking = async {
        let mut told = String::new();
        for question in questions {
            let name = &question.name;
            match ask(address, question).await {
                // Writing to a string can't fail.
                Ok(answer) => writeln!(told, "{name}: {answer}").unwrap_or(()),
                Err(why) => return Err(format!("{told}{name} at {address}: {why}\n")),
            }
        }
        Ok(told)
    };
    match actix_web::rt::System::new().block_on(asking) {
        Ok(told) => {
            IoWrite::write_all(&mut std::io::stdout().lock(), told.as_bytes()).ok();
            ExitCode::SUCCESS
        }
        Err(told) => {
            IoWrite::write_all(&mut std::io::stderr().lock(), told.as_bytes()).ok();
            ExitCode::FAILURE
        }
    }
}

/// The beginning of a well answer's body, or what is wrong.
async fn ask(address: &str, question: &Question) -> Result<String, String> {
    let answer = timeout(question.deadline, exchange(address, question))
        .await
        .map_err(|_| format!("no answer within {} s", question.deadline.as_secs()))?
        .map_err(|error| error.to_string())?;
    judge(&answer)
}

async fn exchange(address: &str, question: &Question) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let Question { head, body, .. } = question;
    let request = format!("{head}Host: {address}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// What a whole answer says.
fn judge(answer: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let speaks = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let status = words.next().filter(|_| speaks);
    let body: String = body.trim().chars().take(SHOWN).collect();
    match status {
        Some("200") => Ok(body),
        Some(status) => Err(format!("status {status}: {body}")),
        None => Err("what answers does not speak HTTP".to_owned()),
    }
}

#[cfg(test)]
mod tests;
