//! The scripts that run inside the server. Each file begins with its contract;
//! a changed contract is a new file with the next number in its name, so that
//! nodes of two versions never mix them up.

use ::redis::aio::MultiplexedConnection;
use ::redis::{RedisResult, Script};

const COMMON: &str = include_str!("scripts/common_1.lua");

/// All scripts.
pub(super) struct Scripts {
    pub(super) transact: Lua,
    pub(super) read: Lua,
    pub(super) probe: Lua,
    pub(super) take: Lua,
    pub(super) keep: Lua,
    pub(super) give_back: Lua,
    pub(super) holders: Lua,
}

/// One script, complete.
pub(super) struct Lua {
    pub(super) text: String,
    pub(super) script: Script,
}

impl Lua {
    /// `text` with the common part after its first line, which has to stay the
    /// first.
    fn new(text: &str) -> Self {
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let text = format!("{first}\n{COMMON}\n{rest}");
        Self {
            script: Script::new(&text),
            text,
        }
    }
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            transact: Lua::new(include_str!("scripts/transact_1.lua")),
            read: Lua::new(include_str!("scripts/read_1.lua")),
            probe: Lua::new(include_str!("scripts/probe_1.lua")),
            take: Lua::new(include_str!("scripts/take_1.lua")),
            keep: Lua::new(include_str!("scripts/keep_1.lua")),
            give_back: Lua::new(include_str!("scripts/give_back_1.lua")),
            holders: Lua::new(include_str!("scripts/holders_1.lua")),
        }
    }

    /// Makes all of them known to a server, so that each call sends a hash
    /// only. One that the server forgets is sent in full by its next call.
    pub(super) async fn load(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        for lua in [
            &self.transact,
            &self.read,
            &self.probe,
            &self.take,
            &self.keep,
            &self.give_back,
            &self.holders,
        ] {
            lua.script.load_async(connection).await?;
        }
        Ok(())
    }
}
