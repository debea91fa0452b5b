//! Requests of a `muster run` user that cannot be fulfilled (run-2): reported once, whatever the number of
//! nodes, with the remedy.

use muster_tests::job::Job;
use muster_tests::launchers::{muster_run, venv};
use muster_tests::make_program;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// Every node detects it by itself, before the start or at it; one reports it for all.
/// run-2.
#[test]
fn a_program_that_no_node_can_start_is_reported_once_with_all_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("script");
    make_program(&script, "#!/nonexistent/interpreter\n");
    for (program, why) in [
        (Path::new("./nope"), "No such file"),
        (Path::new("no-such-program"), "no such program in PATH"),
        (Path::new(""), "no such program in PATH"),
        (folder.path(), "it is a directory"),
        (&script, "what its first line names after #!"),
    ] {
        let mut run = Job::of(&["--nodes", "4"], program, &[]);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(127), "{text}");
        let name = match program.to_str() {
            Some("") => "''",
            name => name.expect("a path in UTF-8"),
        };
        // A node that detects the error at the start, before it has met the others, may report for itself.
        let nodes = if program == script { "n" } else { "n[1-4]: " };
        let words = format!("muster run: {name} cannot be started on {nodes}");
        assert_eq!(run.count(&words), 1, "{words}: {text}");
        assert!(text.contains(why), "{why}: {text}");
        assert_eq!(text.matches("cannot be started").count(), 1, "{text}");
    }
}

/// For several programs each has its line.
#[test]
fn two_programs_that_cannot_be_started_are_both_reported() {
    let mut run = Job::start(muster_run().args([
        "--nodes", "2", "-n", "1", "--", "./one", ":", "-n", "1", "./two",
    ]));
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(status.code(), Some(127), "{text}");
    for (program, node) in [("./one", "n1"), ("./two", "n2")] {
        let words = format!("muster run: {program} cannot be started on {node}: ");
        assert_eq!(run.count(&words), 1, "{text}");
    }
}

/// run-2.
#[test]
fn a_variable_that_is_not_set_is_reported_once() {
    let script = "echo RAN ${MISSPELT-without}";
    let mut run = Job::start(
        muster_run()
            .args(["--nodes", "2", "-x", "MISSPELT", "-x", "GIVEN"])
            .args(["--", "sh", "-c", script])
            .env_remove("MISSPELT")
            .env("GIVEN", ""),
    );
    let status = run.expect_end();
    let text = run.text();
    assert!(status.success() && run.count("RAN without") == 2, "{text}");
    let words = "muster run: -x MISSPELT: it is not set here, so the ranks do not get it; set it, or write \
                 -x MISSPELT=VALUE";
    assert_eq!(
        (run.count(words), text.matches("-x ").count()),
        (1, 2),
        "{text}"
    );
}

/// A misspelt setting, or one without effect on emulated nodes, is reported by one of all processes, and the
/// job runs.
#[test]
fn settings_without_effect_are_reported_once() {
    for nodes in ["1", "2"] {
        let mut run = Job::start(
            muster_run()
                .args(["--nodes", nodes, "--", "echo", "RAN"])
                .env("MUSTER_PROFIL", "quiet")
                .env("MUSTER_LOG", "foo")
                .env("MUSTER_RAILS", "eth99@udp0"),
        );
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success() && run.count("RAN") >= 1, "{text}");
        for words in [
            "muster: MUSTER_PROFIL is no setting of Muster and has no effect; did you mean MUSTER_PROFILE?",
            "muster: MUSTER_LOG has an invalid value: in \"foo\", \"foo\" is no level; set it to error, warn, info or \
             debug; warn is used",
            "muster run: MUSTER_RAILS=eth99@udp0: rail eth99@udp0: this node does not have an interface \"eth99\"; \
             it has no effect on emulated nodes, which have loopback addresses (--rails COUNT)",
        ] {
            assert_eq!(run.count(words), 1, "{words}: {text}");
        }
    }
}

/// The program itself exists. The first node that detects the error reports it.
/// run-2.
#[test]
fn a_missing_folder_for_output_is_reported_once() {
    let options = ["--nodes", "2", "-n", "4", "--output", "/nonexistent/%r"];
    let mut run = Job::of(&options, Path::new("echo"), &["RAN"]);
    let status = run.expect_end();
    let text = run.text();
    assert_eq!((status.code(), run.count("RAN")), (Some(1), 0), "{text}");
    let said = [(0, "n1"), (2, "n2")].map(|(rank, node)| {
        let why = "No such file or directory";
        run.count(&format!(
            "muster run: rank {rank} on {node}: --output /nonexistent/{rank}: {why}"
        ))
    });
    assert_eq!(
        (said.iter().sum::<usize>(), text.matches("--output").count()),
        (1, 1),
        "{text}"
    );
}

/// Neither their content nor their number changes.
#[test]
fn arguments_arrive_unchanged() {
    let odd = OsStr::from_bytes(b"\xff\xfe odd \n 'words'");
    let many = (0..10_000).map(|number| number.to_string());
    // One line at a time, since two ranks print.
    let script = "test $# = 10001 && printf 'WAS %s\\n' \"$(printf '%s' \"$1\" | od -An -c | tr -d ' \\n')\"";
    let mut run = Job::start(
        muster_run()
            .args(["--nodes", "2", "--", "sh", "-c", script, "sh"])
            .arg(odd)
            .args(many),
    );
    let status = run.expect_end();
    let text = run.text();
    assert!(status.success(), "{text}");
    assert_eq!(run.count(r"WAS 377376odd\n'words'"), 2, "{text}");
}

/// Without standard output and error no message can be printed, and the job runs.
#[test]
fn a_job_runs_without_standard_streams() {
    let folder = tempfile::tempdir().expect("a folder");
    let pattern = format!("{}/%r", folder.path().display());
    let muster = muster_run();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec \"$0\" \"$@\" <&- >&- 2>&-"])
        .arg(muster.get_program())
        .args(muster.get_args())
        .args(["--nodes", "2", "--output", &pattern, "--", "echo", "RAN"]);
    for (name, value) in muster.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let status = shell.status().expect("sh can be started");
    assert!(status.success(), "{status}");
    for rank in ["0", "1"] {
        let said = std::fs::read_to_string(folder.path().join(rank)).expect("a file");
        assert_eq!(said, "RAN\n");
    }
}

/// Compiles without libmuster.
fn cc(compiler: &Path, folder: &Path, words: &[&str]) {
    let output = Command::new(compiler)
        .args(words)
        .current_dir(folder)
        .output()
        .expect("a compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
}

/// Asserts that the refusal names the library and the remedy, once for all nodes, and that no rank has run.
fn expect_refused(run: &mut Job, library: &str) {
    let status = run.expect_end();
    let text = run.text();
    assert_eq!((status.code(), run.count("RAN")), (Some(127), 0), "{text}");
    for word in [
        library,
        "MPICH without PMIx",
        "--with-pmix",
        "Open MPI",
        "n[1-2]",
    ] {
        assert_eq!(text.matches(word).count(), 1, "{word}: {text}");
    }
}

/// Emulated nodes have one machine: what is missing there is reported once.
#[test]
fn a_missing_library_is_reported_once() {
    let output = muster_run()
        .env("MUSTER_LIBFABRIC", "/nonexistent/libfabric.so.1")
        .args(["--nodes", "4", "--", "echo", "RAN"])
        .output()
        .expect("muster can be started");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(output.stdout.is_empty(), "a rank has run");
    for word in ["cannot be loaded from", "install libfabric1"] {
        assert_eq!(text.matches(word).count(), 1, "{word}: {text}");
    }
}

/// MPICH from PyPI has no PMIx; its ranks would abort without a message of Muster.
/// run-5.
#[test]
fn a_program_of_mpich_without_pmix_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "#include <mpi.h>\n#include <stdio.h>\n\
                  int main(void) { MPI_Init(0, 0); puts(\"RAN\"); return MPI_Finalize(); }\n";
    std::fs::write(folder.path().join("app.c"), source).expect("a file");
    cc(
        &venv("mpich").join("mpicc"),
        folder.path(),
        &["app.c", "-o", "app"],
    );
    let app = folder.path().join("app");
    let mut run = Job::of(&["--nodes", "2", "-n", "4"], &app, &[]);
    expect_refused(&mut run, "libmpi.so.12");
}

/// Each rank of Debian's MPICH takes itself for the whole job, and ends with 0. A program behind another one,
/// which may be a launcher of MPICH, is not refused, but reported.
/// run-5.
#[test]
fn an_mpich_without_pmix_behind_another_program_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    write(
        "mpi.c",
        "const char version[] = \"MPICH Version: 4.0.2\"; int MPI_Init(void) { return version[0] == 0; }\n",
    );
    let app = "#include <stdio.h>\nint MPI_Init(void);\nint main(void) { puts(\"RAN\"); return MPI_Init(); }\n";
    write("app.c", app);
    let (gcc, soname) = (Path::new("cc"), "-Wl,-soname,libmpich.so.12");
    cc(
        gcc,
        folder.path(),
        &["-shared", "-fPIC", soname, "mpi.c", "-o", "libmpich.so.12"],
    );
    let rpath = format!("-Wl,-rpath,{}", folder.path().display());
    cc(
        gcc,
        folder.path(),
        &["app.c", "./libmpich.so.12", &rpath, "-o", "app"],
    );
    let app = folder.path().join("app");
    let mut run = Job::of(&["--nodes", "2", "-n", "2"], &app, &[]);
    expect_refused(&mut run, "libmpich.so.12");

    let words = ["-n", "2", "--", "timeout", "60"];
    let mut run = Job::start(muster_run().args(words).arg(&app));
    let status = run.expect_end();
    let text = run.text();
    assert!(status.success() && run.count("RAN") == 2, "{text}");
    let said = format!(
        "muster run: n1: {}: it links MPICH without PMIx",
        app.display()
    );
    assert_eq!(run.count(&said), 1, "{text}");
}
