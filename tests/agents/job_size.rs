//! Wrong statements of clients about ranks and the size of the job: real agents, and ranks that state
//! impossible numbers.

use muster_tests::nodes::Nodes;
use muster_tests::rank::Rank;

fn command(job: &Nodes, rank: u32, size: u32) -> std::process::Command {
    let mut command = job.rank(1, rank);
    command.env("MUSTER_TEST_JOB_SIZE", size.to_string());
    command
}

/// The first possible size counts. Another size, statements about ranks that the job does not have, and ranks
/// beyond it are refused and counted, and no rank sees an effect.
#[test]
fn a_rank_beyond_the_job_is_refused() {
    let job = Nodes::new(1);
    let mut first = Rank::start(&mut command(&job, 0, 4), "rank 0").attached();
    let _other = Rank::start(&mut command(&job, 1, 4_000_000), "rank 1").attached();
    for word in ["4 4", "4194303 4", "4194302 4194304", "4 0"] {
        first.send(&format!("aborted {word}"));
        first.await_words(&["REPORTED", "true"]);
    }
    // A valid statement takes effect, after all the others.
    first.send("aborted 2 4");
    first.await_states("n1=Alive 0=Alive 1=Alive 2=Failed 3=Unknown");
    assert_eq!(first.counter("ranks_refused"), 4);
    assert_eq!(first.counter("job_sizes_refused"), 2);
    let beyond = Rank::start(&mut command(&job, 4, 4), "rank 4");
    beyond.await_words(&["REFUSED", "rank", "4", "of", "a", "job"]);
    first.await_states("n1=Alive 0=Alive 1=Alive 2=Failed 3=Unknown");
}

/// A job of more nodes than one zone can have, of which no list is given: the agent refuses to start, and the rank
/// that starts it is told the number, the limit and the remedy. With the list the job has zones.
#[test]
fn a_job_that_is_too_large_for_one_zone_is_refused_at_start() {
    let job = Nodes::new(1).with_linger_ms(0);
    let rank = |variables: &[(&str, &str)]| {
        let mut command = job.rank(1, 0);
        command.env("SLURM_STEP_NUM_NODES", "4097");
        Rank::start(command.envs(variables.iter().copied()), "rank 0")
    };
    for zones in ["auto", "off"] {
        let refused = rank(&[("MUSTER_ZONES", zones)]);
        let line = refused.await_words(&["REFUSED", "4097", "nodes", "4096", "members;"]);
        assert!(line.contains("MUSTER_NODES=$SLURM_STEP_NODELIST"), "{line}");
    }
    let listed = rank(&[("MUSTER_NODES", "n[1-4097]"), ("MUSTER_ZONES", "auto")]);
    let mut listed = listed.attached();
    listed.send("zones");
    let zones = listed.await_words(&["ZONES"]);
    assert!(zones.matches("z").count() > 1, "{zones}");
}
