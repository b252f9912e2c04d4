//! Entry point of a coordinator.

fn main() -> std::process::ExitCode {
    coordinator::cli::main()
}
