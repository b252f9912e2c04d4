//! Entry point of a router node.

fn main() -> std::process::ExitCode {
    router_node::cli::main()
}
