//! The words of the command line as clap takes them: `-np 2`, as mpirun has it, is no option to clap
//! (run-2).

use std::ffi::{OsStr, OsString};

use clap::{ArgAction, Args, Command};

use super::RunArgs;
use muster_config::Refusal;

/// Options of mpirun and srun that are asked for here too, and what is said of them.
const FOREIGN: [(&[&str], &str); 16] = [
    (
        &["--mca", "-mca", "--gmca", "-gmca", "--prtemca", "--pmixmca"],
        "set it as a variable: -x OMPI_MCA_NAME=VALUE",
    ),
    (
        &["-N"],
        "--ppn RANKS is how many ranks each node has, --nodes NODES how many are emulated here; of a step of Slurm \
         srun -N says it",
    ),
    (
        &["-ppn", "--npernode", "--ntasks-per-node", "--map-by"],
        "--ppn RANKS is how many ranks each node has",
    ),
    (&["-c", "--ntasks"], "-n RANKS is how many ranks there are"),
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
        "ranks live through losses unless --on-loss=abort; for MPI's own handler set it as a variable: \
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
        "-v with --bind core says which cores each rank is bound to",
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
        "--bind core binds each rank to cores of its own",
    ),
    (
        &["--wdir", "-wdir", "-wd", "-D", "--chdir"],
        "ranks start in the working directory of muster run: env -C DIRECTORY muster run ...",
    ),
    (
        &["--timeout", "-t", "--time"],
        "timeout SECONDS muster run ... ends the job by then",
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

/// Those of `muster run` with each `-np` before the program as `--np`; those of other commands as they are.
pub fn with_mpirun(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_none_or(|word| word != "run") {
        return arguments;
    }
    let command = RunArgs::augment_args(Command::new("run"));
    let mut at = 2;
    while let Some(word) = arguments.get_mut(at).filter(|word| is_option(word)) {
        if *word == "-np" {
            *word = "--np".into();
        }
        at += 1 + usize::from(wants_another(&command, word));
    }
    arguments
}

/// What is to be said instead of the first word of `muster run` that is an option of other launchers only.
pub fn foreign(arguments: &[OsString]) -> Option<Refusal> {
    if arguments.get(1)? != "run" {
        return None;
    }
    let command = RunArgs::augment_args(Command::new("run"));
    let mut at = 2;
    while let Some(word) = arguments.get(at).filter(|word| is_option(word)) {
        let word = word.to_string_lossy();
        let name = word.split('=').next().unwrap_or_default();
        let meant = FOREIGN.iter().find(|(names, _)| names.contains(&name));
        if let Some((_, remedy)) = meant {
            return Some(Refusal {
                what: format!("run {name:?}"),
                why: "it is an option of other launchers".into(),
                remedy: format!("{remedy}; see muster run --help"),
            });
        }
        at += 1 + usize::from(wants_another(&command, OsStr::new(&*word)));
    }
    None
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word != "--" && word.as_encoded_bytes().starts_with(b"-")
}

/// Whether the value of this option is the next word.
fn wants_another(command: &Command, word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    let takes = |action: &ArgAction| action.takes_values();
    if let Some(name) = text.strip_prefix("--") {
        let mut all = command.get_arguments();
        return all.any(|one| one.get_long() == Some(name) && takes(one.get_action()));
    }
    let letters: Vec<char> = text.chars().skip(1).collect();
    let with_value = letters.iter().position(|letter| {
        let mut all = command.get_arguments();
        all.any(|one| one.get_short() == Some(*letter) && takes(one.get_action()))
    });
    with_value == Some(letters.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-2.
    #[test]
    fn the_number_of_ranks_may_be_said_as_to_mpirun() {
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
            let told: Vec<String> = with_mpirun(arguments)
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            assert_eq!(told.join(" "), taken);
        }
    }

    /// run-2.
    #[test]
    fn options_of_other_launchers_are_told_apart() {
        let command = RunArgs::augment_args(Command::new("run"));
        let own = |name: &str| match name.strip_prefix("--") {
            Some(long) => command
                .get_arguments()
                .any(|one| one.get_long() == Some(long)),
            // clap reads a letter at a time.
            None => name.chars().nth(1).is_some_and(|letter| {
                let mut all = command.get_arguments();
                letter == 'h' || all.any(|one| one.get_short() == Some(letter))
            }),
        };
        for name in FOREIGN.iter().flat_map(|(names, _)| *names) {
            assert!(!own(name), "{name} is an option of muster run");
        }
        for (line, what) in [
            ("muster run -n 2 --mca btl tcp ./a", Some("run \"--mca\"")),
            (
                "muster run --bind core --timeout=9 ./a",
                Some("run \"--timeout\""),
            ),
            (
                "muster run --initial-errhandler mpi_errors_return ./a",
                Some("run \"--initial-errhandler\""),
            ),
            ("muster run --display bind ./a", Some("run \"--display\"")),
            (
                "muster run --report-bindings ./a",
                Some("run \"--report-bindings\""),
            ),
            ("muster run --rankfile f ./a", Some("run \"--rankfile\"")),
            ("muster run --app f", Some("run \"--app\"")),
            ("muster run -n 2 ./a -N 3", None),
            ("muster run -x -N -n 2 ./a", None),
            ("muster run -n 2 -- -N", None),
            ("muster members -N", None),
        ] {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let told = foreign(&arguments).map(|refusal| refusal.what);
            assert_eq!(told.as_deref(), what, "{line}");
        }
    }
}
