//! An MPI program under valgrind: how `muster_mpi.h` and libmuster handle its memory and MPI's objects.
//!
//! MPI has many findings of its own. Only what was done or allocated below a function of Muster counts: a
//! finding with a frame in `muster_mpi.h` or in libmuster. All of MPI runs below libmuster-pmpi.so, so for
//! that library only what it does itself counts.

use muster_tests::compile::{compile, compile_file, interposer, interposer_of};
use muster_tests::death::{await_files, hold_launcher, request_death, written};
use muster_tests::job::{Job, job};
use muster_tests::launchers::{open_mpi_4, venv};
use muster_tests::workspace;
use std::fs;
use std::path::{Path, PathBuf};
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

/// The findings about Muster in these reports.
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
    error.contains("<file>muster_mpi.h</file>")
        || error.contains("/libmuster.so")
        || is_of_interposer(error)
}

/// Whether libmuster-pmpi.so did it or had it allocated: its frame is the first one outside of valgrind and
/// the C library.
fn is_of_interposer(error: &str) -> bool {
    let mut frames = error.split("<frame>").skip(1);
    let is_tool = |frame: &&str| frame.contains("/vgpreload_") || frame.contains("/libc.so");
    frames
        .find(|frame| !is_tool(frame))
        .is_some_and(|frame| frame.contains("/libmuster-pmpi.so"))
}

/// The arguments that start a program under valgrind, with reports in this folder.
fn valgrind(folder: &Path) -> Vec<String> {
    let report = folder.join("report.%p.xml");
    let known = Path::new("/usr/share/openmpi/openmpi-valgrind.supp");
    let mut words = vec![
        "valgrind".to_owned(),
        "--leak-check=full".to_owned(),
        "--show-leak-kinds=definite".to_owned(),
        // Programs that are not optimised have deep stacks.
        "--num-callers=40".to_owned(),
        "--fair-sched=try".to_owned(),
        "--xml=yes".to_owned(),
        format!("--xml-file={}", report.display()),
    ];
    if known.is_file() {
        words.push(format!("--suppressions={}", known.display()));
    }
    words
}

/// A job of three ranks whose last one dies; the survivors are notified and create groups of the ranks.
/// Launchers end them because of the death, or when the first of them has ended: this launcher must not
/// before all have reported.
fn expect_clean(launcher: &mut Command, folder: &Path) {
    let mut outcome = Job::launch(launcher, folder);
    if outcome.read_until(|job| job.count("READY") == 3) {
        let held = hold_launcher(folder);
        request_death(folder);
        let have_ended = await_files(|| {
            let reports = reports(folder);
            let ended = reports
                .iter()
                .filter(|report| report.contains("<state>FINISHED"));
            ended.count() == 3
        });
        drop(held);
        if !have_ended {
            outcome.stop();
        }
    }
    outcome.read_to_end();
    let text = outcome.text();
    let words = ["FAIL", "READY"].map(|word| outcome.count(word));
    assert_eq!(words, [0, 3], "{text}");
    let notified = [0, 1].map(|rank| written(folder, "told", rank).is_some());
    assert_eq!(notified, [true; 2], "{text}");
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

/// Here `muster_mpi_init` distributes the bootstrap records of all processes.
#[test]
fn mpich_with_muster_is_clean() {
    job(|folder| {
        let program = compile(&venv("mpich").join("mpicc"), "told", &["-g"], folder);
        let mut launcher = Command::new(venv("mpich").join("mpiexec"));
        launcher.args(["-disable-auto-cleanup", "-n", "3"]);
        launcher.args(valgrind(folder)).arg(program).arg("records");
        let pid = std::process::id();
        let net = format!("{}.{}", 93 + pid / 250 % 100, 1 + pid % 250);
        expect_clean(launcher.env("TOLD_NET", net), folder);
    });
}

/// Receives messages in every possible way, with this libmuster-pmpi.so between program and MPI. Returns the
/// findings.
fn findings_of_interposer(
    launcher: &mut Command,
    compiler: &Path,
    library: &Path,
    folder: &Path,
) -> Vec<String> {
    let program = compile(compiler, "credits", &["-g", "-rdynamic"], folder);
    let preload = format!("LD_PRELOAD={}", library.display());
    launcher.args(["-n", "3", "env", &preload, "MUSTER_JOB=credits"]);
    let outcome = Job::run(
        launcher.args(valgrind(folder)).arg(program).arg("40"),
        folder,
    );
    let words = ["FAIL", "DONE"].map(|word| outcome.count(word));
    assert_eq!(words, [0, 3], "{}", outcome.text());
    assert_eq!(reports(folder).len(), 3);
    findings(folder)
}

#[test]
fn messages_are_counted_cleanly_under_open_mpi() {
    job(|folder| {
        let compiler = Path::new("mpicc.openmpi");
        let library = interposer(compiler, folder);
        let ours = findings_of_interposer(&mut open_mpi_4(), compiler, &library, folder);
        assert!(ours.is_empty(), "{}", ours.join("\n"));
    });
}

#[test]
fn messages_are_counted_cleanly_under_mpich() {
    job(|folder| {
        let compiler = venv("mpich").join("mpicc");
        let library = interposer(&compiler, folder);
        let mut launcher = Command::new(venv("mpich").join("mpiexec"));
        let ours = findings_of_interposer(&mut launcher, &compiler, &library, folder);
        assert!(ours.is_empty(), "{}", ours.join("\n"));
    });
}

/// Builds a libmuster-pmpi.so that does not free its data of a communicator.
fn forgetful(compiler: &Path, folder: &Path) -> PathBuf {
    let source = workspace().join("bindings-c/pmpi/muster_pmpi.c");
    let text = fs::read_to_string(source).expect("the source");
    let (right, wrong) = ("free(ranks);", "(void)ranks;");
    assert_eq!(text.matches(right).count(), 1);
    let source = folder.join("forgetful.c");
    fs::write(&source, text.replace(right, wrong)).expect("a file");
    interposer_of(&source, compiler, folder)
}

#[test]
fn a_leak_of_the_interposer_is_found() {
    job(|folder| {
        let compiler = Path::new("mpicc.openmpi");
        let library = forgetful(compiler, folder);
        let ours = findings_of_interposer(&mut open_mpi_4(), compiler, &library, folder);
        let is_it = |error: &String| {
            error.contains("Leak_DefinitelyLost") && error.contains("<fn>learn_ranks</fn>")
        };
        assert!(ours.iter().any(is_it), "{}", ours.join("\n"));
    });
}

/// Passes bootstrap records that were never written.
const CARELESS: &str = r#"
#include <muster_mpi.h>
int main(int argc, char **argv)
{
    muster_ctx_t *muster = NULL;
    void *cards = malloc(MUSTER_BOOTSTRAP_RECORD_SIZE);
    MPI_Init(&argc, &argv);
    if (muster_init(NULL, &muster) < 0)
        return 1;
    muster_take_bootstrap_records(muster, cards, 1);
    muster_finalize(muster);
    _exit(0);
}
"#;

/// A mistake is found, and attributed to Muster. (valgrind does not report a group that is not freed: MPI
/// holds it.)
#[test]
fn a_use_of_uninitialised_records_is_found() {
    job(|folder| {
        let source = folder.join("careless.c");
        fs::write(&source, CARELESS).expect("a file");
        let program = compile_file(Path::new("mpicc.openmpi"), &source, &["-g"], folder);
        let mut launcher = open_mpi_4();
        launcher
            .args(["-n", "1"])
            .args(valgrind(folder))
            .arg(program);
        let _ = Job::run(&mut launcher, folder);
        let ours = findings(folder);
        let is_it = |error: &String| {
            error.contains("<kind>UninitCondition")
                && error.contains("<fn>muster_take_bootstrap_records</fn>")
        };
        assert!(ours.iter().any(is_it), "{}", ours.join("\n"));
    });
}
