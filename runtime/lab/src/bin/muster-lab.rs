//! The program `muster-lab`; everything is in the library.

fn main() -> std::process::ExitCode {
    muster_lab::main()
}
