//! A new user's path: follows `examples/README.md` literally, after `make install`. Also the example in Rust,
//! which needs the sources.

use muster_tests::job::{Job, job};
use muster_tests::launchers::open_mpi_4;
use muster_tests::{program, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The commands of a page, block by block.
fn commands(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    let commands: String = blocks
        .map(|rest| rest.split_once("```").map_or("", |(block, _)| block))
        .collect();
    assert!(commands.lines().count() > 10, "{commands}");
    commands
}

/// Installs the programs under test as `make install PREFIX=` installs those of release mode.
fn install(prefix: &Path) {
    let musterd = program("musterd");
    let programs = musterd.parent().expect("a folder");
    let output = Command::new("sh")
        .arg("scripts/install")
        .args([prefix, prefix, programs])
        .current_dir(workspace())
        .output()
        .expect("sh");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/install: {words}");
}

fn follow(folder: &Path, prefix: &Path, commands: &str) -> Output {
    Command::new("timeout")
        .args(["--kill-after=5", "300", "sh", "-euc", commands])
        .current_dir(folder)
        .env("PREFIX", prefix)
        .env("OPENMPI5", workspace().join("target/venv"))
        .env("MUSTER_DIR", folder)
        .env("MUSTER_LINGER_MS", "500")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_btl", "self,vader")
        .env("OMPI_MCA_pml", "ob1")
        // Three ranks on two cores.
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .stdin(Stdio::null())
        .output()
        .expect("timeout")
}

/// Manual pages exist only for Muster's own commands and functions, and the unit starts the installed
/// program.
#[test]
fn nothing_is_installed_under_a_foreign_name() {
    let prefix = tempfile::tempdir().expect("a folder");
    install(prefix.path());
    let pages = prefix.path().join("share/man");
    let mut seen = 0;
    for section in fs::read_dir(pages).expect("sections").flatten() {
        for page in fs::read_dir(section.path()).expect("pages").flatten() {
            let name = page.file_name().to_string_lossy().into_owned();
            assert!(name.starts_with("muster"), "{section:?} {name}");
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen} pages");
    let unit = prefix.path().join("lib/systemd/system/musterd.service");
    let unit = fs::read_to_string(unit).expect("the unit");
    let starts = format!("ExecStart={}/bin/musterd ", prefix.path().display());
    assert!(unit.contains(&starts), "{unit}");
}

/// Every function of the C API has a manual page that man finds under its own name, and every command has its
/// page and its completions.
#[test]
fn what_is_installed_is_documented() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("prefix");
    install(&prefix);
    let man = prefix.join("share/man");
    let map = fs::read_to_string(workspace().join("bindings-c/muster.map")).expect("the map");
    let functions = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("muster_"));
    let mut count = 0;
    for name in functions {
        let page = fs::read_to_string(man.join(format!("man3/{name}.3"))).unwrap_or_default();
        // A page of its own, or a pointer to one.
        let page = match page.trim().strip_prefix(".so ") {
            Some(other) => fs::read_to_string(man.join(other)).unwrap_or_default(),
            None => page,
        };
        assert!(page.contains(&format!(".Fn {name} ")), "{name}.3");
        count += 1;
    }
    assert!(count > 50, "{map}");
    for page in ["man1/muster.1", "man8/musterd.8", "man7/muster.7"] {
        assert!(man.join(page).is_file(), "{page}");
    }
    for file in [
        "bash-completion/completions/muster",
        "zsh/site-functions/_muster",
        "fish/vendor_completions.d/muster.fish",
    ] {
        let text = fs::read_to_string(prefix.join("share").join(file)).unwrap_or_default();
        assert!(text.contains("muster"), "{file}");
    }
}

#[test]
fn the_examples_page_works_as_it_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("prefix");
    install(&prefix);
    // The copy that a user makes of the installed examples.
    let copy = folder.path().join("examples");
    let status = Command::new("cp")
        .arg("-r")
        .arg(prefix.join("share/doc/muster/examples"))
        .arg(&copy)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cp -r");
    let page = fs::read_to_string(copy.join("README.md")).expect("the page");
    let output = follow(&copy, &prefix, &commands(&page));
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{printed}\n{errors}",
        output.status
    );
    for expected in [
        "node right left",
        "from step 0\n",
        "again\n",
        "right: as in one process",
        "rank 0 takes over the share of rank 2; it was told:\n  rank 2 on ",
        "pi is 3.1415",
    ] {
        assert!(
            printed.contains(expected),
            "no {expected:?} in:\n{printed}\n{errors}"
        );
    }
    // The stopped rank was given up, MPI shrank to the others, and both have the right result.
    let both_printed = |what: &str| {
        (0..2).all(|rank| {
            let mut lines = printed.lines();
            lines.any(|line| line.starts_with(&format!("rank {rank}: {what}")))
        })
    };
    for what in ["TOLD", "SHRUNK", "RESUMED", "DONE"] {
        assert!(both_printed(what), "no {what}:\n{printed}\n{errors}");
    }
    for expected in ["is HUNG: stopped", "GAVEUP", " ok 20000 "] {
        assert!(printed.contains(expected), "{expected}:\n{printed}");
    }
    assert!(!printed.contains("NOSHRINK"), "{printed}");
    assert!(errors.contains("1 of 3 ranks died"), "{errors}");
    // The second run of the job started from the first run's last common checkpoint.
    let restarted = printed
        .lines()
        .filter(|line| line.starts_with("from step "))
        .nth(1);
    let step: Option<u64> = restarted.and_then(|line| line["from step ".len()..].parse().ok());
    assert!(
        step.is_some_and(|step| step > 0 && step <= 50_000),
        "{printed}"
    );
}

/// `examples/rsmpi`, which is no part of the workspace. `scripts/test-programs` builds it.
fn rust_example() -> PathBuf {
    let program = workspace().join("target/rsmpi/debug/muster-example-rsmpi");
    assert!(
        program.exists(),
        "no {}; run: sh scripts/test-programs",
        program.display()
    );
    program
}

/// Asserts that these ranks ended in order, that each knows how many died, and that the result is right.
fn expect_done(outcome: &Job, ranks: &[u32], dead: u32) {
    let text = outcome.text();
    for rank in ranks {
        let line = format!("rank {rank} is done, {dead} died");
        assert_eq!(outcome.count(&line), 1, "{line}:\n{text}");
    }
    let pi = format!("pi is 3.141592, {dead} of 4 ranks died");
    assert_eq!(outcome.count(&pi), 1, "{pi}:\n{text}");
}

#[test]
fn the_rust_example_continues_without_a_rank() {
    let program = rust_example();
    job(|folder| {
        let mut launcher = open_mpi_4();
        launcher.args(["-n", "4"]).arg(&program);
        let mut outcome = Job::run(&mut launcher, folder);
        expect_done(&outcome, &[0, 1, 2, 3], 0);
        assert_eq!(outcome.lines.len(), 5, "{}", outcome.text());
        assert!(outcome.expect_end().success());
    });
    job(|folder| {
        let mut launcher = open_mpi_4();
        launcher
            .args(["--enable-recovery", "-n", "4"])
            .arg(&program)
            .arg("2");
        // This launcher does not always end by itself after a rank has died.
        let mut outcome = Job::launch(&mut launcher, folder);
        outcome.read_until(|job| {
            let done = job.lines.iter().filter(|line| line.contains(" is done, "));
            done.count() == 3
        });
        outcome.stop();
        expect_done(&outcome, &[0, 1, 3], 1);
        let line = outcome
            .lines
            .iter()
            .find(|line| line.ends_with("; rank 0 takes over"));
        let line = line.unwrap_or_else(|| panic!("{}", outcome.text()));
        assert!(line.starts_with("rank 2 on "), "{line}");
        // Before Linux 6.15 the signal of a process that its launcher has reaped is unknown.
        let is_how = [
            " FAILED: killed by signal 9 (",
            " FAILED: its process died (",
        ]
        .iter()
        .any(|how| line.contains(how));
        assert!(is_how, "{line}");
    });
}
