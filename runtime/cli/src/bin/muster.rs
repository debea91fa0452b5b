//! The program `muster`; everything is in the library.

fn main() -> std::process::ExitCode {
    muster_cli::main()
}
