//! Rewrites the arguments before clap parses them. `-np 2`, as mpirun accepts it, is not an option for clap (run-2).

use std::ffi::{OsStr, OsString};

use clap::{ArgAction, Args, Command};

use super::RunArgs;
use muster_terminal::Refusal;

/// Options of mpirun and srun that users try here too, each with the replacement.
const FOREIGN: [(&[&str], &str); 16] = [
    (
        &["--mca", "-mca", "--gmca", "-gmca", "--prtemca", "--pmixmca"],
        "set it as a variable: -x OMPI_MCA_NAME=VALUE",
    ),
    (
        &["-N"],
        "--ppn RANKS is the number of ranks of each node, --nodes NODES the number of emulated nodes; for a \
         Slurm step use srun -N",
    ),
    (
        &["-ppn", "--npernode", "--ntasks-per-node", "--map-by"],
        "--ppn RANKS is the number of ranks of each node",
    ),
    (&["-c", "--ntasks"], "-n RANKS is the number of ranks"),
    (
        &["-H", "--host", "-w", "--nodelist"],
        "--hosts LIST names the nodes",
    ),
    (
        &["-machinefile", "--machinefile", "-f"],
        "--hostfile FILE names the nodes",
    ),
    (
        &["-l", "--tag-output", "--tag"],
        "--label writes the rank before each line",
    ),
    (
        &["-o", "--output-filename"],
        "--output PATTERN names a file for each rank, as in out-%r",
    ),
    (
        &["--initial-errhandler", "-initial-errhandler"],
        "ranks survive losses unless --on-loss=abort; set MPI's own handler as a variable: \
         -x OMPI_MCA_mpi_initial_errhandler=VALUE",
    ),
    (
        &[
            "--display",
            "--report-bindings",
            "-report-bindings",
            "--display-map",
            "--display-allocation",
        ],
        "-v with --bind core prints the cores of each rank",
    ),
    (
        &["--rankfile", "-rankfile", "-rf"],
        "ranks are placed by --hosts LIST with --ppn RANKS, in the order of the list, and bound by --bind core",
    ),
    (
        &["--app", "-app", "--appfile"],
        "write the programs on the command line: -n 2 -- ./a : -n 6 ./b",
    ),
    (
        &["--bind-to", "--cpu-bind", "--bind-to-core", "-bind-to"],
        "--bind core binds each rank to its own cores",
    ),
    (
        &["--wdir", "-wdir", "-wd", "-D", "--chdir"],
        "ranks start in the working directory of muster run: env -C DIRECTORY muster run ...",
    ),
    (
        &["--timeout", "-t", "--time"],
        "timeout SECONDS muster run ... ends the job after that time",
    ),
    (
        &[
            "--oversubscribe",
            "--allow-run-as-root",
            "--with-ft",
            "--enable-recovery",
            "--mpi",
            "--overlap",
        ],
        "not needed; remove it",
    ),
];

/// For `muster run`, replaces each `-np` before the program by `--np`. Arguments of other commands are unchanged.
pub fn with_mpirun(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_none_or(|argument| argument != "run") {
        return arguments;
    }
    let command = RunArgs::augment_args(Command::new("run"));
    let mut at = 2;
    while let Some(argument) = arguments.get_mut(at).filter(|argument| is_option(argument)) {
        if *argument == "-np" {
            *argument = "--np".into();
        }
        at += 1 + usize::from(takes_next(&command, argument));
    }
    arguments
}

/// The refusal, with a replacement, of the first option of `muster run` that only other launchers have.
pub fn foreign(arguments: &[OsString]) -> Option<Refusal> {
    if arguments.get(1)? != "run" {
        return None;
    }
    let command = RunArgs::augment_args(Command::new("run"));
    let mut at = 2;
    while let Some(argument) = arguments.get(at).filter(|argument| is_option(argument)) {
        let argument = argument.to_string_lossy();
        let name = argument.split('=').next().unwrap_or_default();
        let known = FOREIGN.iter().find(|(names, _)| names.contains(&name));
        if let Some((_, remedy)) = known {
            return Some(Refusal {
                command: "muster run".into(),
                what: format!("{name:?}"),
                why: "it is an option of other launchers".into(),
                remedy: format!("{remedy}; see muster run --help"),
            });
        }
        at += 1 + usize::from(takes_next(&command, OsStr::new(&*argument)));
    }
    None
}

fn is_option(argument: &OsStr) -> bool {
    argument.len() > 1 && argument != "--" && argument.as_encoded_bytes().starts_with(b"-")
}

/// Whether the value of this option is the next argument.
fn takes_next(command: &Command, argument: &OsStr) -> bool {
    let text = argument.to_string_lossy();
    let takes = |action: &ArgAction| action.takes_values();
    if let Some(name) = text.strip_prefix("--") {
        let mut all = command.get_arguments();
        return all.any(|one| one.get_long() == Some(name) && takes(one.get_action()));
    }
    let flags: Vec<char> = text.chars().skip(1).collect();
    let with_value = flags.iter().position(|flag| {
        let mut all = command.get_arguments();
        all.any(|one| one.get_short() == Some(*flag) && takes(one.get_action()))
    });
    with_value == Some(flags.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-2.
    #[test]
    fn the_number_of_ranks_may_be_given_as_to_mpirun() {
        for (line, taken) in [
            ("muster run -np 2 ./a -np 3", "muster run --np 2 ./a -np 3"),
            (
                "muster run -v --bind core -np 2 ./a",
                "muster run -v --bind core --np 2 ./a",
            ),
            (
                "muster run -vn 2 -x A=1 -np 2 ./a",
                "muster run -vn 2 -x A=1 --np 2 ./a",
            ),
            (
                "muster run --bind=core -n2 -np 2 ./a",
                "muster run --bind=core -n2 --np 2 ./a",
            ),
            ("muster run -x -np ./a", "muster run -x -np ./a"),
            ("muster run -- -np 2", "muster run -- -np 2"),
            ("muster bench -np 2", "muster bench -np 2"),
        ] {
            let arguments = line.split(' ').map(OsString::from).collect();
            let rewritten: Vec<String> = with_mpirun(arguments)
                .iter()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect();
            assert_eq!(rewritten.join(" "), taken);
        }
    }

    /// run-2.
    #[test]
    fn options_of_other_launchers_are_refused_with_a_replacement() {
        let command = RunArgs::augment_args(Command::new("run"));
        let own = |name: &str| match name.strip_prefix("--") {
            Some(long) => command
                .get_arguments()
                .any(|one| one.get_long() == Some(long)),
            // clap reads a short option as single characters.
            None => name.chars().nth(1).is_some_and(|flag| {
                let mut all = command.get_arguments();
                flag == 'h' || all.any(|one| one.get_short() == Some(flag))
            }),
        };
        for name in FOREIGN.iter().flat_map(|(names, _)| *names) {
            assert!(!own(name), "{name} is an option of muster run");
        }
        for (line, what) in [
            ("muster run -n 2 --mca btl tcp ./a", Some("\"--mca\"")),
            (
                "muster run --bind core --timeout=9 ./a",
                Some("\"--timeout\""),
            ),
            (
                "muster run --initial-errhandler mpi_errors_return ./a",
                Some("\"--initial-errhandler\""),
            ),
            ("muster run --display bind ./a", Some("\"--display\"")),
            (
                "muster run --report-bindings ./a",
                Some("\"--report-bindings\""),
            ),
            ("muster run --rankfile f ./a", Some("\"--rankfile\"")),
            ("muster run --app f", Some("\"--app\"")),
            ("muster run -n 2 ./a -N 3", None),
            ("muster run -x -N -n 2 ./a", None),
            ("muster run -n 2 -- -N", None),
            ("muster members -N", None),
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let refused = foreign(&arguments).map(|refusal| refusal.what);
            assert_eq!(refused.as_deref(), what, "{line}");
        }
    }
}
