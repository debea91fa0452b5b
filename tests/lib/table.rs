//! The table in muster-slurm(7) of what survives, by how a job is started and by what is killed. Each of its
//! rows is the observation of a test. With `MUSTER_TABLE=write` a run writes its observations into the page.

use crate::workspace;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// How a job is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Start {
    LivesOn,
    Plain,
    KillOnBadExit,
    Service,
    LeftPmix,
    InPmix,
    Ulfm,
    Mpirun,
    MusterRun,
}

/// The sections of the table, and what is killed in each.
pub const TABLE: [(Start, &str, &[&str]); 9] = [
    (
        Start::LivesOn,
        "srun --muster --mpi=none --kill-on-bad-exit=0 --no-kill",
        &[WORKER, AGENT, NODE, SLURMD, SLURMSTEPD],
    ),
    (Start::Plain, "srun --muster", &[WORKER]),
    (
        Start::KillOnBadExit,
        "srun --muster --kill-on-bad-exit=1",
        &[WORKER],
    ),
    (
        Start::Service,
        "the step of service.sbatch",
        &[WORKER, AGENT, NODE],
    ),
    (
        Start::LeftPmix,
        "srun --muster --mpi=pmix --kill-on-bad-exit=0 --no-kill, programs that have left PMIx",
        &[WORKER, AGENT, NODE],
    ),
    (
        Start::InPmix,
        "srun --mpi=pmix --kill-on-bad-exit=0 --no-kill, MPI programs (Open MPI 4.1)",
        &[RANK],
    ),
    (
        Start::Ulfm,
        "mpirun --with-ft ulfm (Open MPI 5) in an allocation",
        &[RANK, AGENT, DAEMONS, SILENT, NODE],
    ),
    (
        Start::Mpirun,
        "mpirun (Open MPI 5) in an allocation",
        &[RANK],
    ),
    (
        Start::MusterRun,
        "srun --mpi=none --kill-on-bad-exit=0 --no-kill muster run, programs with ULFM (Open MPI 5)",
        &[RANK, NODE],
    ),
];

/// A program that is not MPI.
pub const WORKER: &str = "a worker";
/// A process of an MPI job.
pub const RANK: &str = "a rank";
/// Both processes of an agent.
pub const AGENT: &str = "musterd of a node";
/// Ranks, agents and Slurm's daemons.
pub const NODE: &str = "everything of a node";
/// Slurm's daemon of a node.
pub const SLURMD: &str = "slurmd of a node";
/// Slurm's daemon of a step on a node.
pub const SLURMSTEPD: &str = "slurmstepd of a node";
/// Both of them.
pub const DAEMONS: &str = "slurmd and slurmstepd of a node";
/// As after a power loss: no connection is closed.
pub const SILENT: &str = "everything of a node, whose network is cut before";

/// What happens to the others of an MPI job with fault tolerance.
pub const SHRUNK: &str = "the others continue, all are notified, and MPI continues without it";

/// How the table begins and ends in the page.
const BEGIN: &str =
    ".\\\" The table: each row is the observation of a test (tests/lib/table.rs).\n";
const END: &str = ".\\\" End of the table.\n";

/// What happened to the others, by section and by what was killed.
type Rows = BTreeMap<(Start, usize), String>;

fn page() -> PathBuf {
    workspace().join("docs/man/muster-slurm.7")
}

/// The key of a row.
///
/// # Panics
/// If the table has no such row.
fn row_key(start: Start, killed: &str) -> (Start, usize) {
    let section = TABLE.iter().find(|(one, ..)| *one == start);
    let (_, name, rows) = section.expect("each has a section");
    let row = rows.iter().position(|row| *row == killed);
    (start, row.unwrap_or_else(|| panic!("{name}: {killed}")))
}

/// The table in the page.
fn read(page: &str) -> Rows {
    let (mut rows, mut section, mut killed) = (Rows::new(), None, None);
    let inside = page
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    let (inside, _) = inside.expect("the page has a table");
    for line in inside.lines() {
        let item = line.strip_prefix(".It ");
        let begins = TABLE.iter().find(|(_, name, _)| item == Some(name));
        match (begins, item, section) {
            (Some((start, ..)), ..) => section = Some(*start),
            (None, Some(item), Some(start)) => killed = Some(row_key(start, item)),
            (None, None, _) if !line.starts_with('.') => {
                let row_key = killed.take().expect("an item is before its text");
                rows.insert(row_key, line.to_owned());
            }
            (None, Some(item), None) => panic!("{item} is in no section"),
            _ => {}
        }
    }
    rows
}

/// The table as it should be.
fn rendered(rows: &Rows) -> String {
    let mut text = String::from(".Bl -tag -width Ds\n");
    for (start, name, killed) in TABLE {
        text += &format!(".It {name}\n.Bl -tag -width \"slurmstepd of a node\" -compact\n");
        for (at, killed) in killed.iter().enumerate() {
            if let Some(seen) = rows.get(&(start, at)) {
                text += &format!(".It {killed}\n{seen}\n");
            }
        }
        text += ".El\n";
    }
    text + ".El\n"
}

/// Prints an observation, and compares it with the page.
///
/// # Panics
/// If the page differs.
pub fn observed(start: Start, killed: &str, seen: &str) {
    static PAGE: Mutex<()> = Mutex::new(());
    let _turn = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let row_key = row_key(start, killed);
    let section = TABLE.iter().find(|(one, ..)| *one == start);
    let name = section.map_or("", |(_, name, _)| name);
    let text = format!("--- {name}\n    {killed} is killed: {seen}\n");
    std::io::stderr().write_all(text.as_bytes()).ok();
    let path = page();
    let text = fs::read_to_string(&path).expect("the page");
    let mut rows = read(&text);
    if std::env::var_os("MUSTER_TABLE").is_some_and(|value| value == "write") {
        rows.insert(row_key, seen.to_owned());
        let (before, rest) = text.split_once(BEGIN).expect("the page has a table");
        let (_, after) = rest.split_once(END).expect("it has an end");
        let text = [before, BEGIN, &rendered(&rows), END, after].concat();
        fs::write(&path, text).expect("the page");
    } else {
        let written = rows.get(&row_key).map(String::as_str);
        assert_eq!(
            written,
            Some(seen),
            "MUSTER_TABLE=write writes the observation into the page"
        );
    }
}

/// Asserts that the page has all of these rows and no others, in this order.
///
/// # Panics
/// If it has not.
pub fn expect_all_rows() {
    let text = fs::read_to_string(page()).expect("the page");
    let rows = read(&text);
    let all: usize = TABLE.iter().map(|(_, _, rows)| rows.len()).sum();
    assert_eq!(rows.len(), all, "{rows:#?}");
    let (_, rest) = text.split_once(BEGIN).expect("a table");
    let (table, _) = rest.split_once(END).expect("its end");
    assert_eq!(table, rendered(&rows));
}
