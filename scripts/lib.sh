# Shared by the scripts beside it; sourced, not run.
# shellcheck shell=bash

# Says what is being done.
say() {
    printf '\n==> %s\n' "$*"
}

# Ends the script with a message.
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Installs Debian packages, without starting the servers in them.
install_packages() {
    say "installing $* (Debian packages)"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "please install: $*"
        as_root=(sudo)
    fi
    command -v apt-get >/dev/null || die "please install: $*"
    # While this file says 101, no package starts a server.
    local policy=/usr/sbin/policy-rc.d forbids=0 failed=0
    if [ ! -e "$policy" ]; then
        forbids=1
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" install -m 755 /dev/stdin "$policy"
    fi
    { "${as_root[@]}" apt-get update -q &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends "$@"; } || failed=1
    [ "$forbids" -eq 0 ] || "${as_root[@]}" rm "$policy"
    [ "$failed" -eq 0 ] || die "could not install: $*"
}

# The servers that tests and clusters of local processes need.
need_servers() {
    local missing=()
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v redis-sentinel >/dev/null || missing+=(redis-sentinel)
    command -v redis-cli >/dev/null || missing+=(redis-tools)
    PATH="$PATH:/usr/sbin" command -v nginx >/dev/null || missing+=(nginx)
    # A process whose clock is wrong.
    command -v faketime >/dev/null || missing+=(faketime)
    if [ "${#missing[@]}" -gt 0 ]; then
        install_packages "${missing[@]}"
    fi
}

# What every build needs: Rust, and a linker.
need_toolchain() {
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH="$HOME/.cargo/bin:$PATH"
    fi
    command -v cargo >/dev/null || die "please install Rust 1.95 or newer"
    command -v cc >/dev/null || install_packages gcc libc6-dev
}
