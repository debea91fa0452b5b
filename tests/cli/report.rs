//! A split among real agents, and the page that `muster report` makes of their journals: it shows what
//! happened to the job, and shows the view of the node that was cut off separately.
//!
//! Each node is a network namespace; every wait is for an event.

use muster_tests::hosts::{Fault, Hosts, nids};
use muster_tests::nodes::Nodes;
use muster_tests::process::signal;
use muster_tests::rank::{Rank, rank_program};
use muster_tests::{program, until};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

const NODES: usize = 4;
const RANKS: usize = 2 * NODES;
/// The node that is cut off, and one of its ranks.
const CUT: usize = 4;
const CUT_RANK: usize = 7;
/// A rank that is killed before that, on n1.
const KILLED: usize = 1;
/// Ranks on the other nodes, one per node.
const OTHERS: [usize; 3] = [0, 2, 4];
/// A journal's line in the table: the event in a cell, and its subject in the next one.
const FAILED: &str = "<td class=\"t\">node-failed</td>";

/// Starts a rank of a job, on a host with its own network, whose agent keeps a journal.
fn start(job: &Nodes, hosts: &Hosts, journals: &Path, rank: usize) -> Rank {
    let node = 1 + rank / 2;
    let mut command = hosts.command(node, Path::new(&rank_program()));
    job.place(&mut command, node, rank as u32);
    let rail = |node| nids(node, &["udp0"], 7741);
    let seeds: Vec<String> = (1..=NODES).map(rail).collect();
    command
        .env("MUSTER_RAILS", rail(node))
        .env("MUSTER_SEEDS", seeds.join(" "))
        .env("MUSTER_JOURNAL", journals);
    Rank::start(&mut command, &format!("rank {rank}")).attached()
}

/// The output of `muster report`, and the page that it makes.
fn report(journals: &Path, page: &Path) -> (String, String) {
    let mut command = Command::new(program("muster"));
    command.arg("report").arg(journals).arg("--file").arg(page);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    (printed, std::fs::read_to_string(page).unwrap())
}

#[test]
fn a_split_is_reported_as_the_job_saw_it() {
    let Some(hosts) = Hosts::open(NODES, 1) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let job = Nodes::new(NODES);
    let start = |rank| start(&job, &hosts, folder.path(), rank);
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    let nodes = (1..=NODES).map(|node| format!("n{node}=Alive"));
    let all = nodes.chain((0..RANKS).map(|rank| format!("{rank}=Alive")));
    let all = all.collect::<Vec<_>>().join(" ");
    ranks.iter_mut().for_each(|rank| rank.await_states(&all));

    let killed = format!("rank={KILLED}");
    signal(ranks[KILLED].pid(), Signal::KILL);
    for rank in OTHERS.into_iter().chain([CUT_RANK]) {
        ranks[rank].await_words(&["EVENT", "RankFailed", &killed]);
    }
    let on_both_sides = |event: &str| {
        for rank in OTHERS {
            ranks[rank].await_words(&["EVENT", event, "node=n4"]);
        }
        let others = ["node=n1", "node=n2", "node=n3"].map(|node| ["EVENT", event, node]);
        ranks[CUT_RANK].await_each(&others.each_ref().map(|words| &words[..]));
    };
    hosts.break_rail(CUT, 0, Fault::Black);
    on_both_sides("NodeFailed");
    hosts.heal(CUT, 0, Fault::Black);
    on_both_sides("NodeUp");

    let page = folder.path().join("report.html");
    let last =
        || Some(report(folder.path(), &page)).filter(|(printed, _)| printed.contains("came back"));
    let (printed, page) = until(|| report(folder.path(), &page).0, last);
    let summary = "report.html: 1 rank failed; 1 node was cut off for ";
    assert!(
        printed.contains(summary) && printed.contains(" s and came back ("),
        "{printed}"
    );
    let (of_job, of_cut) = page
        .split_once("Reports of nodes while they were cut off")
        .unwrap_or_else(|| panic!("no view of its own: {page}"));
    assert_eq!(
        of_job.matches("<tr class=\"failure\">").count(),
        2,
        "{page}"
    );
    assert_eq!(of_job.matches(FAILED).count(), 1, "{page}");
    for there in ["<td>n4 with ranks 6-7</td>", "<td>rank 1 on n1</td>"] {
        assert!(of_job.contains(there), "{there}: {page}");
    }
    // In one row, or in several if the members were found silent one after the other.
    assert!(of_cut.contains(&format!("<td>n4</td>{FAILED}")), "{page}");
    // All members are named; `?` would stand for an unknown one.
    assert!(!page.contains('?'), "{page}");
}
