//! An MPI program under valgrind: what `muster_mpi.h` and libmuster do with its memory and with MPI's objects.
//!
//! MPI has findings of its own in plenty. Here counts only what was done or allocated below a function of ours:
//! one with a frame in `muster_mpi.h` or in libmuster.

use muster_tests::death::{await_files, hold_launcher, say_die, written};
use muster_tests::launch::{compile, compile_file, job, open_mpi_4, run, run_with, venv};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The reports of all processes.
fn reports(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("a folder").flatten();
    files
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "xml"))
        .map(|path| fs::read_to_string(path).unwrap_or_default())
        .collect()
}

/// What they say of us.
fn findings(folder: &Path) -> Vec<String> {
    let mut ours = Vec::new();
    for report in reports(folder) {
        let errors = report.split("<error>").skip(1);
        let errors = errors.filter_map(|error| error.split("</error>").next());
        ours.extend(errors.filter(|error| is_ours(error)).map(str::to_owned));
    }
    ours
}

fn is_ours(error: &str) -> bool {
    error.contains("<file>muster_mpi.h</file>") || error.contains("/libmuster.so")
}

/// The words that start a program under valgrind, with reports in this folder.
fn valgrind(folder: &Path) -> Vec<String> {
    let report = folder.join("report.%p.xml");
    let known = Path::new("/usr/share/openmpi/openmpi-valgrind.supp");
    let mut words = vec![
        "valgrind".to_owned(),
        "--leak-check=full".to_owned(),
        "--show-leak-kinds=definite".to_owned(),
        "--fair-sched=try".to_owned(),
        "--xml=yes".to_owned(),
        format!("--xml-file={}", report.display()),
    ];
    if known.is_file() {
        words.push(format!("--suppressions={}", known.display()));
    }
    words
}

/// A job of three ranks whose last one dies; the survivors are told and make groups of the ranks. Launchers end
/// them for the death, or when the first of them has ended: this one not before all have reported.
fn expect_clean(launcher: &mut Command, folder: &Path) {
    let mut has_died = false;
    let outcome = run_with(launcher, folder, |lines| {
        let ready = lines.iter().filter(|line| line.starts_with("READY"));
        if has_died || ready.count() < 3 {
            return true;
        }
        has_died = true;
        let _held = hold_launcher(folder);
        say_die(folder);
        await_files(|| {
            let reports = reports(folder);
            let ended = reports
                .iter()
                .filter(|report| report.contains("<state>FINISHED"));
            ended.count() == 3
        })
    });
    let text = outcome.text();
    let words = ["FAIL", "READY"].map(|word| outcome.count(word));
    assert_eq!(words, [0, 3], "{text}");
    let told = [0, 1].map(|rank| written(folder, "told", rank).is_some());
    assert_eq!(told, [true; 2], "{text}");
    let ours = findings(folder);
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}

#[test]
fn open_mpi_with_muster_is_clean() {
    job(|folder| {
        let program = compile(Path::new("mpicc.openmpi"), "told", &["-g"], folder);
        let mut launcher = open_mpi_4();
        launcher.args(["--enable-recovery", "-n", "3"]);
        launcher.args(valgrind(folder)).arg(program);
        expect_clean(&mut launcher, folder);
    });
}

/// Here `muster_mpi_init` sends the cards of all processes around.
#[test]
fn mpich_with_muster_is_clean() {
    job(|folder| {
        let program = compile(&venv("mpich").join("mpicc"), "told", &["-g"], folder);
        let mut launcher = Command::new(venv("mpich").join("mpiexec"));
        launcher.args(["-disable-auto-cleanup", "-n", "3"]);
        launcher.args(valgrind(folder)).arg(program).arg("cards");
        let pid = std::process::id();
        let net = format!("{}.{}", 93 + pid / 250 % 100, 1 + pid % 250);
        expect_clean(launcher.env("TOLD_NET", net), folder);
    });
}

/// Hands cards around that were never written.
const CARELESS: &str = r#"
#include <muster_mpi.h>
int main(int argc, char **argv)
{
    muster_ctx_t *muster = NULL;
    void *cards = malloc(MUSTER_CARD_SIZE);
    MPI_Init(&argc, &argv);
    if (muster_init(NULL, &muster) < 0)
        return 1;
    muster_take_cards(muster, cards, 1);
    muster_finalize(muster);
    _exit(0);
}
"#;

/// A mistake is found, and found to be one of ours. (A group that is not given back is none of valgrind's: MPI
/// holds it.)
#[test]
fn what_is_done_wrong_is_found() {
    job(|folder| {
        let source = folder.join("careless.c");
        fs::write(&source, CARELESS).expect("a file");
        let program = compile_file(Path::new("mpicc.openmpi"), &source, &["-g"], folder);
        let mut launcher = open_mpi_4();
        launcher
            .args(["-n", "1"])
            .args(valgrind(folder))
            .arg(program);
        let _ = run(&mut launcher, folder);
        let ours = findings(folder);
        let is_it = |error: &String| {
            error.contains("<kind>UninitCondition") && error.contains("<fn>muster_take_cards</fn>")
        };
        assert!(ours.iter().any(is_it), "{}", ours.join("\n"));
    });
}
