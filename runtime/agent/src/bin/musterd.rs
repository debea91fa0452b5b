//! The agent `musterd`; everything is in the library.

fn main() -> std::process::ExitCode {
    muster_agent::main()
}
