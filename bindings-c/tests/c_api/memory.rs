//! The C programs of the tests under valgrind and with AddressSanitizer: no invalid access, no use after free, no
//! undefined behaviour, no leak. Any finding fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{alone, attempt, beside, compile, functions, gossip_on, header, here, musterd};

const LINK: &[&str] = &["-lmuster", "-lpthread"];
/// The exit code of valgrind's memcheck if it has found something.
const FOUND: &str = "99";
const SANITIZERS: &[&str] = &[
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

/// A C program of the tests; `epoll` is an example.
fn source(name: &str) -> PathBuf {
    match name {
        "epoll" => here().join("../examples/epoll.c"),
        _ => beside(name),
    }
}

/// Runs a program with the given command; fails if it fails. Programs with agents of several nodes have two nets from
/// this number on: each concurrent run requires its own.
fn check(name: &str, net: u8, flags: &[&str], command: impl Fn(&Path) -> Command) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let binary = compile(&source(name), folder.path(), LINK, flags);
    let mut command = command(&binary);
    let command = alone(&mut command, folder.path(), Some(&musterd()));
    let [of_gossip, of_nodes] = [net, net + 1].map(|net| format!("127.96.{net}"));
    match name {
        "gossip" => command.arg(&of_gossip).envs(gossip_on(&of_gossip)),
        "nodes" => command.arg(of_nodes),
        "epoll" => command.args(["wait", "1"]),
        _ => command,
    };
    let output = attempt(command);
    let (printed, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let status = output.status;
    assert!(status.success(), "{name}: {status}\n{printed}\n{errors}");
}

/// A test with valgrind and one with sanitizers for each program. Together the programs call every function.
macro_rules! programs {
    ($($name:ident)*) => {
        const PROGRAMS: &[&str] = &[$(stringify!($name)),*];

        mod valgrind {
            $(#[test]
            fn $name() {
                super::check(stringify!($name), 2, &["-O1"], super::memcheck);
            })*
        }

        mod sanitizers {
            $(#[test]
            fn $name() {
                let run = |program: &std::path::Path| std::process::Command::new(program);
                super::check(stringify!($name), 4, super::SANITIZERS, run);
            })*
        }
    };
}

programs! {
    wrong_use right_use attributes bad_use callbacks states control many_threads gossip nodes epoll
}

/// Checks forked children, too, but not the agent, which is another program. The sanitizers check for leaks: a forked
/// child loses what the threads of its parent had allocated.
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
    for name in PROGRAMS {
        sources += &read(&source(name));
    }
    for (name, _) in functions(&header()) {
        assert!(sources.contains(&format!("{name}(")), "{name}");
    }
}

/// The tools are installed and find defects: in a program that passes a freed buffer to the library, and in one that
/// leaks memory.
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
    let (code, errors) = ends(&plain, &memcheck, "stale");
    assert_eq!(code, FOUND.parse().ok(), "{errors}");
    let flags = ["-O0", "-fsanitize=address,undefined"];
    let binary = compile(&source, folder.path(), LINK, &flags);
    let run = |program: &Path| Command::new(program);
    for (word, finding) in [
        ("stale", "heap-use-after-free"),
        ("lost", "detected memory leaks"),
    ] {
        let (code, errors) = ends(&binary, &run, word);
        assert!(
            code != Some(0) && errors.contains(finding),
            "{code:?} {errors}"
        );
    }
}
