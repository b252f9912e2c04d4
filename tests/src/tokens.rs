//! A token endpoint for the refresh-token grant. The tokens of account `a` after
//! `n` grants are `key-a.n` (so that the scripted upstream knows them as `a.n`)
//! and `refresh-a.n`; each refresh token is good once, unless it is told
//! otherwise.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::{Config, upstream_key};
use crate::reply::Gate;
use crate::upstream::wire;
use crate::wait::{SOON, within};

/// A key for `OMNIROUTE_SECRET_KEY`.
pub const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Another one.
pub const OTHER_SECRET: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";

/// What becomes of one grant.
#[derive(Clone, Debug)]
pub enum Turn {
    /// It is judged and answered.
    Grant,
    /// Not judged: this is the answer, with these headers.
    Answer(u16, Value, Vec<(&'static str, &'static str)>),
    /// Judged and answered once the gate is open.
    Behind(Gate),
    /// Judged at once, answered once the gate is open.
    Withheld(Gate),
    /// Judged, but the answer is lost.
    Lost,
}

/// One grant as it arrived.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Its fields, whether they came as a form or as JSON.
    pub fields: HashMap<String, String>,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// What it was answered, once it was judged.
    pub status: u16,
}

impl Grant {
    /// A field's text; empty where there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

struct State {
    /// How often each account was granted new tokens.
    granted: HashMap<String, u64>,
    turns: VecDeque<Turn>,
    rotates: bool,
    reusable: bool,
    life_s: Option<u64>,
}

struct Shared {
    state: Mutex<State>,
    grants: watch::Sender<Vec<Grant>>,
}

/// The endpoint; it stops when dropped.
pub struct TokenEndpoint {
    addr: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl Drop for TokenEndpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl TokenEndpoint {
    /// Starts on a free port of loopback: it rotates, takes each refresh token
    /// once, and gives access tokens of an hour.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                granted: HashMap::new(),
                turns: VecDeque::new(),
                rotates: true,
                reusable: false,
                life_s: Some(3600),
            }),
            grants: watch::Sender::default(),
        });
        let server = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            addr,
            shared,
            server,
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}/oauth/token", self.addr)
    }

    /// A configuration with accounts at a provider `plan`, whose access tokens
    /// end at `expires_at`, or nobody knows when.
    pub fn config(&self, upstream: &str, accounts: &[&str], expires_at: Option<i64>) -> Config {
        let more = json!({
            "auth": "oauth",
            "oauth": {"tokenUrl": self.url(), "clientId": "the-client"},
        });
        let config = Config::new()
            .provider_with("plan", "openai", upstream, more)
            .no_waiting();
        accounts.iter().fold(config, |config, account| {
            config.connection_with(account, "plan", tokens(account, 0, expires_at))
        })
    }

    /// What becomes of the next grants, one after the other.
    pub fn script(&self, turns: impl IntoIterator<Item = Turn>) {
        self.state().turns = turns.into_iter().collect();
    }

    /// Whether each grant brings another refresh token.
    pub fn rotates(&self, rotates: bool) {
        self.state().rotates = rotates;
    }

    /// Whether a refresh token that was spent is taken again.
    pub fn reusable(&self, reusable: bool) {
        self.state().reusable = reusable;
    }

    /// How long access tokens live from now on, in s; `None` does not say.
    pub fn life_s(&self, life_s: Option<u64>) {
        self.state().life_s = life_s;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// All grants so far that were judged, in order.
    pub fn grants(&self) -> Vec<Grant> {
        self.shared.grants.borrow().clone()
    }

    /// Waits for the `n`th grant (from 1) to be judged.
    pub async fn grant(&self, n: usize) -> Grant {
        let mut grants = self.shared.grants.subscribe();
        let judged = grants.wait_for(|grants| grants.len() >= n);
        let grants = within(SOON, "a grant reaches the token endpoint", judged).await;
        grants.unwrap()[n - 1].clone()
    }
}

/// The `oauth` of an account after `n` grants.
pub fn tokens(account: &str, n: u64, expires_at: Option<i64>) -> Value {
    let access = upstream_key(&format!("{account}.{n}"));
    let mut oauth =
        json!({"accessToken": access, "refreshToken": format!("refresh-{account}.{n}")});
    if let Some(at) = expires_at {
        oauth["expiresAt"] = json!(at);
    }
    json!({"oauth": oauth})
}

/// A time for `expiresAt`, from now, in ms.
pub fn in_ms(from_now: i64) -> Option<i64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.unwrap().as_millis()).unwrap();
    Some(now + from_now)
}

impl State {
    /// Judges a grant: the status and the answer.
    fn judge(&mut self, grant: &Grant) -> (u16, Value) {
        let refused = (
            400,
            json!({"error": "invalid_grant", "error_description": "no"}),
        );
        let spent = grant.field("refresh_token").strip_prefix("refresh-");
        let Some((account, n)) = spent.and_then(|spent| spent.split_once('.')) else {
            return refused;
        };
        let Ok(n) = n.parse::<u64>() else {
            return refused;
        };
        let granted = self.granted.entry(account.to_owned()).or_default();
        let good = if self.rotates { n == *granted } else { n == 0 };
        if !(good || self.reusable && n < *granted) {
            return refused;
        }
        *granted += 1;
        let access = upstream_key(&format!("{account}.{granted}"));
        let mut answer = json!({"access_token": access, "token_type": "Bearer"});
        if self.rotates {
            answer["refresh_token"] = json!(format!("refresh-{account}.{granted}"));
        }
        if let Some(life) = self.life_s {
            answer["expires_in"] = json!(life);
        }
        (200, answer)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move { serve(stream, &shared).await });
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    let mut buffer = Vec::new();
    let request = wire::read_request(&mut stream, &mut buffer).await?;
    let mut grant = Grant {
        fields: fields(&request.body),
        headers: request.headers,
        status: 0,
    };
    let turn = shared.state.lock().unwrap().turns.pop_front();
    let turn = turn.unwrap_or(Turn::Grant);
    if let Turn::Behind(gate) = &turn {
        gate.pass().await;
    }
    let (status, body, headers) = match &turn {
        Turn::Answer(status, body, headers) => (*status, body.clone(), headers.clone()),
        Turn::Grant | Turn::Behind(_) | Turn::Withheld(_) | Turn::Lost => {
            let (status, body) = shared.state.lock().unwrap().judge(&grant);
            (status, body, Vec::new())
        }
    };
    grant.status = status;
    shared.grants.send_modify(|grants| grants.push(grant));
    if let Turn::Withheld(gate) = &turn {
        gate.pass().await;
    }
    if matches!(turn, Turn::Lost) {
        return None;
    }
    let body = body.to_string();
    let length = body.len();
    let mut head = format!(
        "HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n"
    );
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    stream
        .write_all(format!("{head}\r\n{body}").as_bytes())
        .await
        .ok()?;
    stream.flush().await.ok()
}

fn fields(body: &[u8]) -> HashMap<String, String> {
    if let Ok(Value::Object(object)) = serde_json::from_slice(body) {
        let fields = object.into_iter();
        return fields
            .filter_map(|(name, value)| Some((name, value.as_str()?.to_owned())))
            .collect();
    }
    let text = String::from_utf8_lossy(body);
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| {
        let plain = percent_encoding::percent_decode_str(text);
        plain.decode_utf8_lossy().into_owned()
    };
    pairs
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}
