//! muster.f90: it has the functions and numbers of the header, and a strict Fortran compiler accepts it.

use std::process::Command;

use crate::common::{alone, attempt, bare, functions, header, here, installed, musterd, run};

fn module() -> String {
    std::fs::read_to_string(here().join("fortran/muster.f90")).expect("the module is checked in")
}

#[test]
fn the_module_has_every_function() {
    let written = functions(&header());
    let module = module();
    let mut bound: Vec<&str> = module
        .lines()
        .filter(|line| line.ends_with("result(answer) bind(C)"))
        .filter_map(|line| line.trim().strip_prefix("function ")?.split('(').next())
        .collect();
    bound.sort_unstable();
    let names: Vec<&str> = written.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(bound, names);
}

#[test]
fn the_module_has_every_number() {
    let text = bare(&header());
    let written: Vec<(&str, &str)> = text
        .split([',', '{', '}'])
        .filter_map(|part| part.trim().split_once(" = "))
        .filter(|(name, _)| name.starts_with("MUSTER_"))
        .collect();
    assert!(written.len() > 50, "{written:?}");
    let module = module();
    for (name, number) in written {
        let line = format!("  integer(c_int), parameter :: {name} = {number}\n");
        assert!(module.contains(&line), "muster.f90 lacks {line}");
    }
}

#[test]
fn a_strict_compiler_accepts_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    run(Command::new("gfortran")
        .args([
            "-std=f2018",
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-c",
        ])
        .arg(here().join("fortran/muster.f90"))
        .current_dir(folder.path()));
}

/// A module that compiles may still pass a value in place of an address, so each function is called and checked.
#[test]
fn every_function_is_called_and_returns() {
    let program = here().join("tests/c_api/every_call.f90");
    let text = std::fs::read_to_string(&program).expect("the program is checked in");
    for (name, _) in functions(&header()) {
        assert!(text.contains(&format!("{name}(")), "{name} is not called");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    run(Command::new("gfortran")
        .args([
            "-std=f2018",
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-g",
        ])
        .args(["-fcheck=all", "-o", "every_call"])
        .arg(here().join("fortran/muster.f90"))
        .arg(program)
        .arg(format!("-L{}", installed().join("lib").display()))
        .arg("-lmuster")
        .current_dir(folder.path()));
    let mut command = Command::new(folder.path().join("every_call"));
    let output = attempt(alone(&mut command, folder.path(), Some(&musterd())));
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
}
