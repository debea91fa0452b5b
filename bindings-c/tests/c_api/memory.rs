//! The C programs of the tests under valgrind and with AddressSanitizer: no invalid access, no use after free, no
//! undefined behaviour, no leak. Any finding fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{alone, attempt, beside, compile, functions, gossip_on, header, here, musterd};

const LINK: &[&str] = &["-lmuster", "-lpthread"];
/// The exit code of valgrind's memcheck if it has found something.
const FOUND: &str = "99";

/// A C program, its arguments and its environment.
type Program = (PathBuf, Vec<String>, Vec<(&'static str, String)>);

/// The C programs of the tests with their arguments and environments; those with agents of several nodes use this net.
/// The last one is an example. Together they call every function.
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
    let arguments = ["wait", "1"].map(str::to_owned);
    programs.push((epoll, arguments.to_vec(), Vec::new()));
    programs
}

/// Runs each program with the given command; fails once for all of them.
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
            let (printed, errors) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            let name = source.display();
            complaints += &format!("{name}: {}\n{printed}\n{errors}\n", output.status);
        }
    }
    assert!(complaints.is_empty(), "{complaints}");
}

/// Checks forked children, too, but not the agent, which is another program. The other test checks for leaks: a forked
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
