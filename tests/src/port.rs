//! Ports of loopback that stay a test's own while the process behind them is
//! down. They lie below the range from which the kernel gives ports away, and
//! a lock on a file keeps tests that run side by side apart.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// The first port taken, and how many there are.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;
/// Coprime to `COUNT`, so that stepping by it visits every port.
const STEP: u64 = 7919;

/// A port that nobody else takes until this is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Held for its lock.
    _lock: File,
}

impl Port {
    /// Takes a free port.
    pub fn take() -> Self {
        let dir = std::env::temp_dir().join(format!("cluster-tests-ports-{}", nix_uid()));
        std::fs::create_dir_all(&dir).unwrap();
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(COUNT);
        for step in 0..u64::from(COUNT) {
            let at = (start + step * STEP) % u64::from(COUNT);
            let number = FIRST + u16::try_from(at).unwrap();
            let lock = File::create(dir.join(number.to_string())).unwrap();
            if lock.try_lock().is_err() {
                continue;
            }
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self {
                    number,
                    _lock: lock,
                };
            }
        }
        panic!("no free port");
    }

    /// Its number.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Its address on loopback.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

fn nix_uid() -> u32 {
    nix::unistd::getuid().as_raw()
}
