//! The words of the command line as clap takes them: `-np 2`, as mpirun has it, is no option to clap
//! (run-2).

use std::ffi::{OsStr, OsString};

use clap::{ArgAction, Args, Command};

use super::RunArgs;

/// Those of `muster run` with each `-np` before the program as `--np`; those of other commands as they are.
pub(crate) fn with_mpirun(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|word| word != "run") {
        return words;
    }
    let command = RunArgs::augment_args(Command::new("run"));
    let mut at = 2;
    while let Some(word) = words.get_mut(at).filter(|word| is_option(word)) {
        if *word == "-np" {
            *word = "--np".into();
        }
        at += 1 + usize::from(wants_another(&command, word));
    }
    words
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
            let words = line.split(' ').map(OsString::from).collect();
            let told: Vec<String> = with_mpirun(words)
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            assert_eq!(told.join(" "), taken);
        }
    }
}
