//! No command of the README and of the guide goes unrun: each in a block of shell is run by a test, those that a text
//! names exist with their options, and what is written in C compiles.

use muster_tests::{program, workspace};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The README and all pages of the guide.
fn text() -> String {
    let mut text = fs::read_to_string(workspace().join("README.md")).expect("README.md");
    let pages = fs::read_dir(workspace().join("docs/guide/src")).expect("the guide");
    for page in pages.flatten() {
        text.push('\n');
        text.push_str(&fs::read_to_string(page.path()).expect("a page"));
    }
    text
}

/// What other tests and scripts run, by the beginning of the command and by what these have for it.
const BY_OTHERS: [(&str, &str); 22] = [
    ("make demo", "fn a_real_mpi_job_survives"),
    ("target/release/muster demo", "muster demo failed"),
    ("sh scripts/demo-svg", "\"scripts/demo-svg\""),
    ("make build", "demo: build"),
    ("make check-dist", "sh scripts/check-dist"),
    ("make check", "sh scripts/check"),
    ("make install", "\"scripts/install\""),
    (
        "muster sim run tests/scenarios/job-4096",
        "muster-lab sim run tests/scenarios/job-4096",
    ),
    (
        "muster sim calibrate",
        "fn the_simulator_is_fitted_to_a_small_group",
    ),
    ("make slurm-plugin", "-p muster-slurm"),
    ("make dist", "sh scripts/dist"),
    ("echo 'optional", "const PLUGIN"),
    ("spack repo add", "repo add"),
    ("spack install muster", "install --no-cache muster"),
    ("spack test run muster", "test run --alias"),
    ("muster run --hosts n[1-4]", "\"--hosts\""),
    (
        "muster run -n 4 -- python",
        "fn mpi4py_continues_after_a_loss",
    ),
    (
        "mpirun --with-ft ulfm",
        "fn open_mpi_5_with_fault_tolerance",
    ),
    ("cc app.c", "--variable=rpath"),
    ("mpifort", "fn the_examples_page_works"),
    ("muster doctor", "\"muster doctor\""),
    // Sets variables.
    ("export ", ""),
];

/// The commands in the blocks of shell, with their lines joined and without remarks.
fn typed(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split_once("```").map(|(block, _)| block));
    let lines: String = blocks.map(|block| block.replace("\\\n", " ")).collect();
    let command = |line: &str| line.split(" #").next().unwrap_or(line).trim().to_owned();
    lines.lines().map(command).collect()
}

/// The tests but for this one, the scripts and the Makefile.
fn sources() -> String {
    fn read(path: &Path, text: &mut String) {
        if path.is_dir() {
            for entry in fs::read_dir(path).expect("a folder").flatten() {
                read(&entry.path(), text);
            }
        } else if !path.ends_with("commands.rs") {
            text.push_str(&fs::read_to_string(path).unwrap_or_default());
        }
    }
    let mut text = String::new();
    for name in ["tests", "bindings-c/tests", "scripts", "Makefile"] {
        read(&workspace().join(name), &mut text);
    }
    text
}

/// Each stands as it is in a test, or in the list above.
#[test]
fn every_command_is_run_by_a_test() {
    let sources = sources();
    let typed = typed(&text());
    assert!(typed.len() > 40, "{typed:?}");
    for command in typed {
        let by_other =
            |(begins, has): &(&str, &str)| command.starts_with(begins) && sources.contains(has);
        let is_run = sources.contains(&format!("\"{command}\"")) || BY_OTHERS.iter().any(by_other);
        assert!(is_run, "no test runs: {command}");
    }
}

/// Commands and options that a page names in its text exist.
#[test]
fn every_command_that_is_named_exists() {
    let mut seen = BTreeSet::new();
    for line in text().lines() {
        for code in line.split('`').skip(1).step_by(2) {
            let mut words = code.split_whitespace();
            let (Some("muster"), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
            if !is_word(&name) || !seen.insert(code.to_owned()) {
                continue;
            }
            // Of `run` a word is the program, which is not to be started.
            let below = words.clone().take_while(is_word);
            let below = below.take(if name == "run" { 0 } else { 1 });
            let output = Command::new(program("muster"))
                .arg(name)
                .args(below)
                .arg("--help")
                .output();
            let output = output.expect("muster");
            assert!(output.status.success(), "{code}: {output:?}");
            let help = String::from_utf8_lossy(&output.stdout);
            let mine = words.take_while(|word| *word != "--");
            for option in mine.filter(|word| word.starts_with("--")) {
                let option = option.split(['=', '[']).next().unwrap_or(option);
                assert!(help.contains(option), "{code}: no {option}");
            }
        }
    }
    assert!(seen.len() > 20, "{seen:?}");
}

/// What the guide has in C compiles.
#[test]
fn the_c_of_the_guide_compiles() {
    let directory = tempfile::tempdir().unwrap();
    let text = text();
    let blocks = text.split("```c\n").skip(1);
    let blocks: Vec<&str> = blocks
        .filter_map(|rest| Some(rest.split_once("```")?.0))
        .collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let (heads, body): (Vec<&str>, Vec<&str>) =
            block.lines().partition(|line| line.starts_with("#include"));
        let program = format!(
            "#include <poll.h>\n#include <stdio.h>\n#include <stdlib.h>\n{}\nvoid part(void) {{\n{}\n}}\n",
            heads.join("\n"),
            body.join("\n")
        );
        let path = directory.path().join("part.c");
        fs::write(&path, &program).unwrap();
        let output = Command::new("cc")
            .args([
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
                "-I",
            ])
            .arg(workspace().join("bindings-c/include"))
            .arg(&path)
            .output()
            .expect("cc");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{program}");
    }
}
