//! `store.url`: which backend keeps shared state, and how it is reached.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use secrecy::{ExposeSecret as _, SecretString};

/// Hosts of one URL at most.
const MAX_HOSTS: usize = 32;
/// The forms, for messages.
const FORMS: &str = "embedded:PATH, embedded:memory, redis://HOST, \
                     redis+sentinel://HOST,HOST/MASTER or redis+cluster://HOST,HOST";

/// A parsed `store.url`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `embedded:memory`: forgotten at exit.
    Memory,
    /// `embedded:PATH`: a directory of this node.
    Disk(PathBuf),
    /// One of the `redis` forms: shared by all nodes.
    Redis(RedisUrl),
}

/// How a Redis is reached. Neither `Debug` nor `Display` tells a password.
///
/// `redis[s]://[[USER]:PASSWORD@]HOST[:PORT][/DB]`,
/// `redis[s]+sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../MASTER[/DB]` or
/// `redis[s]+cluster://[[USER]:PASSWORD@]HOST[:PORT],...`, each with options
/// after a `?`: `ca`, `cert` and `key` name PEM files, and `sentinelUser` and
/// `sentinelPassword` are for the sentinels themselves. With `rediss` every
/// connection is encrypted. Reserved characters are written as `%XX`.
#[derive(Clone, Debug)]
pub struct RedisUrl {
    /// Who says where the master is.
    pub servers: RedisServers,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// The database's number; 0 in a cluster.
    pub db: u32,
    /// The ACL user and the password.
    pub login: Login,
    /// The same for the sentinels.
    pub sentinel_login: Login,
    /// A PEM file with the authorities to trust instead of the public ones.
    pub ca: Option<PathBuf>,
    /// PEM files of this client's certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Who says where the master is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisServers {
    /// The one server.
    Single(RedisHost),
    /// The sentinels, of the master with this name.
    Sentinel(Vec<RedisHost>, String),
    /// Any nodes of the cluster.
    Cluster(Vec<RedisHost>),
}

/// A host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RedisHost {
    /// A name or an address, an IPv6 one without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// How a client names itself.
#[derive(Clone, Debug, Default)]
pub struct Login {
    /// The user; `None` is the default one.
    pub user: Option<String>,
    /// The password, if one is needed.
    pub password: Option<SecretString>,
}

impl PartialEq for Login {
    fn eq(&self, other: &Self) -> bool {
        let secret = |login: &Self| {
            login
                .password
                .as_ref()
                .map(|p| p.expose_secret().to_owned())
        };
        self.user == other.user && secret(self) == secret(other)
    }
}

impl Eq for Login {}

impl PartialEq for RedisUrl {
    fn eq(&self, other: &Self) -> bool {
        let plain = |url: &Self| {
            let files = (url.ca.clone(), url.client.clone());
            (url.servers.clone(), url.tls, url.db, files)
        };
        plain(self) == plain(other)
            && self.login == other.login
            && self.sentinel_login == other.sentinel_login
    }
}

impl Eq for RedisUrl {}

impl fmt::Display for RedisHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls { "s" } else { "" };
        let list = |hosts: &[RedisHost]| {
            let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
            hosts.join(",")
        };
        match &self.servers {
            RedisServers::Single(host) => write!(f, "redis{tls}://{host}/{}", self.db),
            RedisServers::Sentinel(hosts, master) => {
                write!(
                    f,
                    "redis{tls}+sentinel://{}/{master}/{}",
                    list(hosts),
                    self.db
                )
            }
            RedisServers::Cluster(hosts) => write!(f, "redis{tls}+cluster://{}", list(hosts)),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("embedded:memory"),
            Self::Disk(path) => write!(f, "embedded:{}", path.display()),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    /// The error says what is wrong and never repeats the text, which may hold
    /// a password.
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text)
    }
}

fn parse(text: &str) -> Result<StoreUrl, String> {
    if let Some(place) = text.strip_prefix("embedded:") {
        return match place {
            "" => Err(format!("names no directory; use {FORMS}")),
            "memory" => Ok(StoreUrl::Memory),
            path if path.contains('\0') => Err(format!("not a path; use {FORMS}")),
            path => Ok(StoreUrl::Disk(PathBuf::from(path))),
        };
    }
    let known = [
        ("redis", false, Form::Single),
        ("rediss", true, Form::Single),
        ("redis+sentinel", false, Form::Sentinel),
        ("rediss+sentinel", true, Form::Sentinel),
        ("redis+cluster", false, Form::Cluster),
        ("rediss+cluster", true, Form::Cluster),
    ];
    let split = text.split_once("://");
    let form = split.and_then(|(scheme, rest)| {
        let of_scheme = known.iter().find(|(name, ..)| *name == scheme);
        of_scheme.map(|(_, tls, form)| (*tls, *form, rest))
    });
    let Some((tls, form, rest)) = form else {
        return Err(format!("not a store; use {FORMS}"));
    };
    redis(tls, form, rest).map(StoreUrl::Redis)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Single,
    Sentinel,
    Cluster,
}

/// What follows `://`.
fn redis(tls: bool, form: Form, rest: &str) -> Result<RedisUrl, String> {
    if rest.contains('#') || rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("has a `#` or a space; write reserved characters as %XX".to_owned());
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (self::login(login)?, hosts),
        None => (Login::default(), authority),
    };
    let port = if form == Form::Sentinel { 26379 } else { 6379 };
    let hosts = hosts
        .split(',')
        .map(|host| self::host(host, port))
        .collect::<Result<Vec<_>, _>>()?;
    if hosts.len() > MAX_HOSTS {
        return Err(format!("names more than {MAX_HOSTS} hosts"));
    }
    let (servers, db) = servers(form, hosts, path)?;
    let mut url = RedisUrl {
        servers,
        tls,
        db,
        login,
        sentinel_login: Login::default(),
        ca: None,
        client: None,
    };
    options(&mut url, query)?;
    Ok(url)
}

fn servers(form: Form, hosts: Vec<RedisHost>, path: &str) -> Result<(RedisServers, u32), String> {
    let path = path.strip_suffix('/').unwrap_or(path);
    match form {
        Form::Single => {
            let [host] = <[RedisHost; 1]>::try_from(hosts).map_err(|_| {
                "names several hosts; use redis+sentinel:// or redis+cluster://".to_owned()
            })?;
            Ok((RedisServers::Single(host), database(path)?))
        }
        Form::Sentinel => {
            let (master, db) = path.split_once('/').unwrap_or((path, ""));
            let master = decoded(master)?;
            if master.is_empty() {
                return Err("names no master; use redis+sentinel://HOST,HOST/MASTER".to_owned());
            }
            Ok((RedisServers::Sentinel(hosts, master), database(db)?))
        }
        Form::Cluster if path.is_empty() || path == "0" => Ok((RedisServers::Cluster(hosts), 0)),
        Form::Cluster => Err("names a database, and a cluster has only one".to_owned()),
    }
}

fn database(text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(0);
    }
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| plain);
    number.ok_or_else(|| "its database is not a number".to_owned())
}

fn login(text: &str) -> Result<Login, String> {
    let (user, password) = text
        .split_once(':')
        .ok_or("names a user without a password; use USER:PASSWORD@ or :PASSWORD@")?;
    let user = decoded(user)?;
    Ok(Login {
        user: Some(user).filter(|user| !user.is_empty()),
        password: Some(SecretString::from(decoded(password)?)),
    })
}

fn host(text: &str, port: u16) -> Result<RedisHost, String> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(bracketed) => bracketed
            .split_once(']')
            .ok_or("has an IPv6 address without its `]`")?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() {
        return Err("names no host".to_owned());
    }
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0),
        None if rest.is_empty() => Some(port),
        None => None,
    };
    Ok(RedisHost {
        host: host.to_owned(),
        port: port.ok_or("has a port that is not a number up to 65535")?,
    })
}

fn options(url: &mut RedisUrl, query: &str) -> Result<(), String> {
    let (mut cert, mut key) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value)?;
        match name {
            "ca" => url.ca = Some(value.into()),
            "cert" => cert = Some(value.into()),
            "key" => key = Some(value.into()),
            "sentinelUser" => url.sentinel_login.user = Some(value),
            "sentinelPassword" => url.sentinel_login.password = Some(value.into()),
            _ => {
                let known = "ca, cert, key, sentinelUser and sentinelPassword";
                return Err(format!("has an unknown option; there are {known}"));
            }
        }
    }
    url.client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err("needs both `cert` and `key`, or neither".to_owned()),
    };
    if !url.tls && (url.ca.is_some() || url.client.is_some()) {
        return Err("names certificates, but only rediss:// is encrypted".to_owned());
    }
    let sentinels = matches!(url.servers, RedisServers::Sentinel(..));
    if !sentinels && url.sentinel_login != Login::default() {
        return Err("has a login for sentinels, but no sentinels".to_owned());
    }
    if url.sentinel_login.user.is_some() && url.sentinel_login.password.is_none() {
        return Err("has `sentinelUser` without `sentinelPassword`".to_owned());
    }
    Ok(())
}

fn decoded(text: &str) -> Result<String, String> {
    let whole = text.split('%').skip(1).all(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let bytes = percent_encoding::percent_decode_str(text).decode_utf8();
    match bytes {
        Ok(text) if whole => Ok(text.into_owned()),
        _ => Err("has a `%` that does not begin %XX".to_owned()),
    }
}

#[cfg(test)]
mod tests;
