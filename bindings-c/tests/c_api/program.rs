//! C programs against libmuster, shared and static: wrong use gets a code, not a crash; right use
//! sees a killed rank.

use std::path::Path;
use std::process::Command;

use crate::common::{alone, attempt, beside, compile, gossip_on, musterd};

const SHARED: &[&str] = &["-lmuster", "-lpthread"];
const STATIC: &[&str] = &["-l:libmuster.a", "-lpthread", "-ldl", "-lgcc_eh", "-lgcc"];

/// Compiles and runs one of the programs beside this file, away from every other agent.
fn check(program: &str, link: &[&str], agent: Option<&Path>) {
    check_with(program, link, agent, |command| command);
}

/// The same with more words and variables.
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
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{program}: {}
{words}",
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

/// Under MPICH's launcher a rank that called muster_init alone is told of muster_mpi_init when it waits in vain.
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

/// cfg-005, dbg-080: rails, peers, policy and figures, asked for and changed by a program.
#[test]
fn rails_and_policy_asked_for_changed_and_refused() {
    check("control", SHARED, Some(&musterd()));
}

/// AG-01, cfg-005: the parameters of age gossip, asked for, set anew and refused.
#[test]
fn gossip_asked_for_initialised_and_refused() {
    let net = "127.96.1";
    check_with("gossip", SHARED, Some(&musterd()), |command| {
        command.arg(net).envs(gossip_on(net))
    });
}

#[test]
fn events_in_numbers_and_callbacks_on_a_thread() {
    check("callbacks", SHARED, Some(&musterd()));
}

#[test]
fn wrong_use_beside_an_agent_that_goes_on() {
    check("bad_use", SHARED, Some(&musterd()));
}

/// The agent is killed, keeper and worker, and no other can be started for a while.
fn lose_the_agent(words: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let agent = folder.path().join("agent");
    std::os::unix::fs::symlink(musterd(), &agent).expect("a link");
    check_with("agent_lost", SHARED, Some(&agent), |command| {
        command.args(words)
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
fn a_core_dump_is_told_while_it_lasts() {
    check("core_dump", SHARED, Some(&musterd()));
}

#[test]
fn many_threads_connect_ask_and_disconnect() {
    check("many_threads", SHARED, Some(&musterd()));
}

#[test]
fn states_waited_for_copied_promised_and_left() {
    check("states", SHARED, Some(&musterd()));
}

#[test]
fn two_ranks_one_killed() {
    check("right_use", SHARED, Some(&musterd()));
}
