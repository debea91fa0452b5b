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
