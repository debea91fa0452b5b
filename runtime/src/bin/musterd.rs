//! The agent `musterd`: speaks for one node of one job. Everything is in `muster::agent`.

fn main() -> std::process::ExitCode {
    muster::agent::main()
}
