//! C programs against libmuster, shared and static: wrong use returns a code and does not crash; right use
//! reports a killed rank.

use std::path::Path;
use std::process::Command;

use crate::common::{alone, attempt, beside, compile, gossip_on, musterd};

const SHARED: &[&str] = &["-lmuster", "-lpthread"];
const STATIC: &[&str] = &["-l:libmuster.a", "-lpthread", "-ldl", "-lgcc_eh", "-lgcc"];

/// Compiles and runs one of the C programs in this directory, isolated from other agents.
fn check(program: &str, link: &[&str], agent: Option<&Path>) {
    check_with(program, link, agent, |command| command);
}

/// As [`check`], with more arguments and variables.
fn check_with(
    program: &str,
    link: &[&str],
    agent: Option<&Path>,
    with: impl Fn(&mut Command) -> &mut Command,
) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let binary = compile(&beside(program), folder.path(), link, &["-Werror"]);
    let mut command = Command::new(&binary);
    let output = attempt(with(alone(&mut command, folder.path(), agent)));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{program}: {}
{printed}",
        output.status
    );
}

#[test]
fn wrong_use_of_the_shared_library() {
    check("wrong_use", SHARED, None);
}

#[test]
fn wrong_use_of_the_static_library() {
    check("wrong_use", STATIC, None);
}

/// Under MPICH's launcher, a rank that called only muster_init gets a hint to muster_mpi_init when its wait times out.
#[test]
fn a_wait_without_ranks_under_mpich_names_the_remedy() {
    for launcher in ["mpich", "none"] {
        check_with("unplaced", SHARED, Some(&musterd()), |command| {
            for name in ["PMI_RANK", "PMI_SIZE", "PMI_FD", "PMI_PORT"] {
                command.env_remove(name);
            }
            if launcher == "mpich" {
                command.env("PMI_RANK", "0").env("PMI_SIZE", "4");
            }
            command.arg(launcher)
        });
    }
}

#[test]
fn attributes_written_read_watched_and_refused() {
    check("attributes", SHARED, Some(&musterd()));
}

/// cfg-005, dbg-080: a program reads and changes rails, peers, policy and counters.
#[test]
fn requests_about_rails_and_policy() {
    check("control", SHARED, Some(&musterd()));
}

/// AG-01, cfg-005: a program reads and changes the parameters of age gossip.
#[test]
fn requests_about_gossip() {
    let net = "127.96.1";
    check_with("gossip", SHARED, Some(&musterd()), |command| {
        command.arg(net).envs(gossip_on(net))
    });
}

#[test]
fn several_events_at_once_and_callbacks_on_a_thread() {
    check("callbacks", SHARED, Some(&musterd()));
}

#[test]
fn wrong_use_with_an_agent_that_survives() {
    check("bad_use", SHARED, Some(&musterd()));
}

/// The agent is killed, supervisor and worker, and no other can be started for some time.
fn lose_the_agent(arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let agent = folder.path().join("agent");
    std::os::unix::fs::symlink(musterd(), &agent).expect("a link");
    check_with("agent_lost", SHARED, Some(&agent), |command| {
        command.args(arguments)
    });
}

#[test]
fn an_agent_lost_and_found() {
    lose_the_agent(&[]);
}

#[test]
fn an_agent_lost_and_found_without_a_thread() {
    lose_the_agent(&["alone"]);
}

#[test]
fn nodes_refused_outcast_and_failed_together() {
    check_with("nodes", SHARED, Some(&musterd()), |command| {
        command.arg("127.97.1")
    });
}

#[test]
fn a_core_dump_is_reported_while_it_lasts() {
    check("core_dump", SHARED, Some(&musterd()));
}

#[test]
fn many_threads_connect_and_disconnect() {
    check("many_threads", SHARED, Some(&musterd()));
}

#[test]
fn waits_copies_ticks_and_exit_codes() {
    check("states", SHARED, Some(&musterd()));
}

#[test]
fn two_ranks_one_killed() {
    check("right_use", SHARED, Some(&musterd()));
}
