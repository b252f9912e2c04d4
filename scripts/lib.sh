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

# Installs Debian packages.
install_packages() {
    say "installing $* (Debian packages)"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "please install: $*"
        as_root=(sudo)
    fi
    command -v apt-get >/dev/null || die "please install: $*"
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "$@"
}

# What every build needs: Rust, and a linker.
need_toolchain() {
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH="$HOME/.cargo/bin:$PATH"
    fi
    command -v cargo >/dev/null || die "please install Rust 1.95 or newer"
    command -v cc >/dev/null || install_packages gcc libc6-dev
}
