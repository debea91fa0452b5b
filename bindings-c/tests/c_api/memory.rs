//! The same C programs under valgrind and with AddressSanitizer: no invalid access, no use of what was
//! given back, no undefined behaviour, nothing left behind. Any finding fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{alone, attempt, beside, compile, functions, gossip_on, header, here, musterd};

const LINK: &[&str] = &["-lmuster", "-lpthread"];
/// What valgrind's memcheck ends with if it has found something.
const FOUND: &str = "99";

/// A C program, its arguments and its variables.
type Program = (PathBuf, Vec<String>, Vec<(&'static str, String)>);

/// The C programs of the tests with what they are started with, agents of several nodes on this net; the last is an
/// example. Between them they call every function.
fn programs(net: &str) -> Vec<Program> {
    let names = [
        "wrong_use",
        "right_use",
        "attributes",
        "bad_use",
        "callbacks",
        "states",
        "control",
        "many_threads",
    ];
    let mut programs: Vec<_> = names
        .iter()
        .map(|name| (beside(name), Vec::new(), Vec::new()))
        .collect();
    programs.push((beside("gossip"), vec![net.to_owned()], gossip_on(net)));
    programs.push((beside("nodes"), vec![net.to_owned()], Vec::new()));
    let epoll = here().join("../examples/epoll.c");
    let words = ["wait", "1"].map(str::to_owned);
    programs.push((epoll, words.to_vec(), Vec::new()));
    programs
}

/// Runs each program by a command that is made for it, and fails for all of them at once.
fn check_all(net: &str, flags: &[&str], command: impl Fn(&Path) -> Command) {
    let agent = musterd();
    let mut complaints = String::new();
    for (source, arguments, variables) in programs(net) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let binary = compile(&source, folder.path(), LINK, flags);
        let mut command = command(&binary);
        alone(&mut command, folder.path(), Some(&agent))
            .args(arguments)
            .envs(variables);
        let output = attempt(&mut command);
        if !output.status.success() {
            let (words, errors) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            let name = source.display();
            complaints += &format!("{name}: {}\n{words}\n{errors}\n", output.status);
        }
    }
    assert!(complaints.is_empty(), "{complaints}");
}

/// Forked children are looked at as well; the agent, which is another program, is not. What is left
/// behind is the other test's: a forked child loses what the threads of its parent held.
fn memcheck(program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--leak-check=no", "--fair-sched=try"])
        .arg(format!("--error-exitcode={FOUND}"))
        .arg(program);
    command
}

#[test]
fn every_function_is_called_by_one_of_them() {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a source");
    let mut sources = read(&here().join("tests/c_api/every_call.h"));
    for (source, _, _) in programs("127.96.2") {
        sources += &read(&source);
    }
    for (name, _) in functions(&header()) {
        assert!(sources.contains(&format!("{name}(")), "{name}");
    }
}

#[test]
fn valgrind_finds_nothing() {
    check_all("127.96.2", &["-O1"], memcheck);
}

#[test]
fn sanitizers_find_nothing() {
    let flags = [
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    check_all("127.96.3", &flags, |program| Command::new(program));
}

/// The tools are there and bite: a program that hands the library a buffer that was given back, and one
/// that forgets what it has.
#[test]
fn mistakes_are_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("mistake.c");
    let program = "#include <muster.h>\n#include <stdlib.h>\n#include <string.h>\n\
        int main(int count, char **words) {\n\
        char *text = malloc(16); int minor; muster_version(NULL, &minor, NULL);\n\
        memset(text, count, 16);\n\
        if (strcmp(words[1], \"stale\") == 0) { free(text); return text[minor] == 7; }\n\
        text = NULL; return 0; }\n";
    std::fs::write(&source, program).expect("written");
    let ends = |binary: &Path, tool: &dyn Fn(&Path) -> Command, word: &str| {
        let mut command = tool(binary);
        let output = attempt(alone(command.arg(word), folder.path(), None));
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let plain = compile(&source, folder.path(), LINK, &["-O0"]);
    let (code, words) = ends(&plain, &memcheck, "stale");
    assert_eq!(code, FOUND.parse().ok(), "{words}");
    let flags = ["-O0", "-fsanitize=address,undefined"];
    let binary = compile(&source, folder.path(), LINK, &flags);
    let run = |program: &Path| Command::new(program);
    for (word, finding) in [
        ("stale", "heap-use-after-free"),
        ("lost", "detected memory leaks"),
    ] {
        let (code, words) = ends(&binary, &run, word);
        assert!(
            code != Some(0) && words.contains(finding),
            "{code:?} {words}"
        );
    }
}
