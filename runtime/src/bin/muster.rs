//! The command line `muster`; everything is in `muster::cli`.

fn main() -> std::process::ExitCode {
    muster::cli::main()
}
