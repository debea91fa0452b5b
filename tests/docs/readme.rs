//! The README and the guide are true: their blocks about a running agent are the output of the commands in them, and
//! each of their commands works.
//!
//! Numbers differ from run to run, and who reported first; the rest may not. `MUSTER_README=write` puts
//! what this run printed in the place of the blocks.

use muster_tests::cluster::{Cluster, NODES};
use muster_tests::rank::rank_program;
use muster_tests::steps::{all_alive, plugin};
use muster_tests::{DEADLINE, Members, program, workspace};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Commands of which the README shows the output.
const SHOWN: [&str; 4] = [
    "muster members",
    "muster why n4",
    "muster top -n 1",
    "muster doctor",
];
/// Where what is shown depends on the machine: what was looked at is compared, not what was found.
const OF_MACHINE: &str = "muster doctor";
/// Where the order and the number of lines are those of the evidence that came.
const OF_EVIDENCE: &str = "muster why n4";

/// The README and the pages of the guide in the order of its summary, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let guide = workspace().join("docs/guide/src");
    let summary = fs::read_to_string(guide.join("SUMMARY.md")).unwrap();
    let names = summary.split("](").skip(1);
    let names = names.filter_map(|rest| rest.split_once(')').map(|(name, _)| guide.join(name)));
    let paths = [workspace().join("README.md")].into_iter().chain(names);
    let read = |path: PathBuf| (path.clone(), fs::read_to_string(path).expect("a page"));
    paths.map(read).collect()
}

fn text() -> String {
    pages().into_iter().map(|(_, text)| text + "\n").collect()
}

/// A block of a page: its command, and what stands below it.
fn blocks(readme: &str) -> Vec<(String, String)> {
    let fenced = readme.split("```").skip(1).step_by(2);
    let shown = fenced.filter_map(|block| {
        let (first, rest) = block.trim_start_matches('\n').split_once('\n')?;
        let command = first.strip_prefix("$ ")?;
        SHOWN
            .contains(&command)
            .then(|| (command.to_owned(), rest.to_owned()))
    });
    shown.collect()
}

/// Every command of the README about an agent, in its order.
fn commands(readme: &str) -> Vec<String> {
    let lines = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    lines
        .filter(|line| line.starts_with("muster "))
        .map(str::to_owned)
        .collect()
}

/// Lines whose numbers are all alike; names of reporters in their order.
fn plain(text: &str) -> Vec<String> {
    let word = |word: &str| {
        let word = word.trim_end_matches(',');
        let is_number = word.bytes().any(|byte| byte.is_ascii_digit())
            && word
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.');
        if is_number {
            "N".to_owned()
        } else {
            word.to_owned()
        }
    };
    let line = |line: &str| {
        let (line, reporters) = line.split_once(", by ").unwrap_or((line, ""));
        let words: Vec<String> = line.split_whitespace().map(word).collect();
        let reported = if reporters.is_empty() {
            ""
        } else {
            ", by others"
        };
        words.join(" ") + reported
    };
    text.lines()
        .map(line)
        .filter(|line| !line.is_empty())
        .collect()
}

/// What must be alike of a block, wherever and whenever its command is run.
fn essence(command: &str, text: &str) -> BTreeSet<String> {
    let lines = plain(text);
    match command {
        OF_MACHINE => {
            let looked = text
                .lines()
                .filter(|line| !line.starts_with(' ') && line.contains("  "));
            looked
                .filter_map(|line| line.split_whitespace().skip(1).find(|word| *word != "ok"))
                .map(str::to_owned)
                .collect()
        }
        // First the verdict, then that it joined, and last what was concluded.
        OF_EVIDENCE => {
            let about = |line: &&String| {
                !line.contains("ago") || line.contains("joined") || line.contains("declared")
            };
            let lines = lines.iter().filter(about);
            lines
                .map(|line| line.split(" says ").next().unwrap_or(line).to_owned())
                .collect()
        }
        // Whether an agent may run in real time is the machine's matter.
        _ => lines
            .into_iter()
            .filter(|line| !line.contains("of job"))
            .collect(),
    }
}

/// A command of the README, with the programs under test.
fn shell(command: &str, directory: &Path) -> Command {
    let programs = program("muster");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(directory);
    let programs = programs.parent().unwrap().display();
    shell
        .env("PATH", format!("{programs}:{path}"))
        .env("MUSTER_AGENT", program("musterd"))
        .env("MUSTER_DIR", directory)
        .env("MUSTER_CONTROL", directory.join("n1.control"));
    shell
}

fn run(command: &str, directory: &Path) -> (Option<i32>, String, String) {
    let output = shell(command, directory).output().expect("sh");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// Commands elsewhere that need no cluster; `./app` is a program.
const ELSEWHERE: [&str; 13] = [
    "muster --version",
    "muster run --nodes 4 -n 8 -- ./app",
    "muster run --nodes 4 -n 8 --label -- ./app",
    "muster run --nodes 4 -n 8 -v -- ./app",
    "muster run --nodes 4 -n 8 --on-loss=abort -- ./app",
    "muster run --nodes 4 -n 8 --on-loss=continue -- ./app",
    "muster run -n 2 -- ./a : -n 6 ./b",
    "muster sim run tests/scenarios/zone-all-faults.toml",
    "muster sim run tests/scenarios/zone-all-faults.toml --seed 7",
    "muster sim sweep tests/scenarios/zone-all-faults.toml --seeds 20",
    "muster sim compare --members 16 --loss 0 --seeds 1",
    "muster sim idle --members 16,64 --warm",
    "muster sim lamport --members 16 --seeds 1",
];
/// Two members without a job.
const MEMBERS: [&str; 2] = [
    "musterd --name a --rail 127.0.1.1@udp0 --seed 127.0.1.1@udp0 --print-events plain",
    "musterd --name b --rail 127.0.1.2@udp0 --seed 127.0.1.1@udp0 --print-events plain",
];
/// Two participants of age gossip, which name each other by NID.
const PARTICIPANTS: [&str; 2] = [
    "musterd --name a --rail 127.0.2.1@udp0 --protocol age --participants 127.0.2.[1-2]@udp0 --print-events plain",
    "musterd --name b --rail 127.0.2.2@udp0 --protocol age --participants 127.0.2.[1-2]@udp0 --print-events plain",
];
/// A job of `muster run` and a simulated world, as the README has them.
#[test]
fn the_other_commands_of_the_readme_work() {
    let directory = tempfile::tempdir().unwrap();
    let readme = text();
    let app = ["/usr/bin/true", "/bin/true"].map(Path::new);
    let app = app.into_iter().find(|path| path.exists()).expect("true");
    for name in ["app", "a", "b"] {
        symlink(app, directory.path().join(name)).unwrap();
    }
    symlink(workspace().join("tests"), directory.path().join("tests")).unwrap();
    for command in ELSEWHERE {
        assert!(readme.contains(command), "no page has {command}");
        let (code, said, error) = run(command, directory.path());
        assert_eq!(code, Some(0), "{command}: {said}{error}");
    }
}

/// Killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn members_without_a_job_find_each_other_as_the_readme_starts_them() {
    let directory = tempfile::tempdir().unwrap();
    let readme = text();
    let start = |command: &str| {
        assert!(readme.contains(command), "no page has {command}");
        let mut shell = shell(&format!("exec {command}"), directory.path());
        let mut child = shell.stdout(Stdio::piped()).spawn().expect("sh");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        (Running(child), output.lines().map_while(Result::ok))
    };
    for ([a, b], [first_name, second_name]) in [
        (MEMBERS, ["a", "b"]),
        (PARTICIPANTS, ["127.0.2.1@udp0", "127.0.2.2@udp0"]),
    ] {
        let (_a, mut first) = start(a);
        assert!(first.next().is_some_and(|line| line.starts_with("READY ")));
        let (_b, mut second) = start(b);
        assert!(second.next().is_some_and(|line| line.starts_with("READY ")));
        assert!(first.any(|line| line.starts_with(&format!("UP {second_name} "))));
        assert!(second.any(|line| line.starts_with(&format!("UP {first_name} "))));
    }
}

#[test]
fn what_the_readme_shows_is_what_the_commands_print() {
    let directory = tempfile::tempdir().unwrap();
    let nets = [0, 1].map(|rail| format!("127.51.{rail}"));
    let members = Members::new(directory.path(), &nets).start_up(4);
    // It falls silent and does not come back.
    members[3].signal(Signal::STOP);
    for member in &members[..3] {
        member.wait_for(&["DOWN n4".into()]);
    }
    let mut pages = pages();
    let readme = text();
    let shown = blocks(&readme);
    assert_eq!(
        shown
            .iter()
            .map(|(command, _)| command.as_str())
            .collect::<Vec<_>>(),
        SHOWN
    );
    let write = std::env::var_os("MUSTER_README").is_some_and(|value| value == "write");
    for (command, block) in shown {
        let end = Instant::now() + DEADLINE;
        loop {
            let (code, printed, error) = run(&command, directory.path());
            let printed =
                printed.replace(&directory.path().display().to_string(), "/tmp/muster-1000");
            // A warning of the doctor is a code of its own.
            assert!(
                code == Some(0) || command == OF_MACHINE && code == Some(4),
                "{command}: {error}"
            );
            if write {
                let (before, after) = (
                    format!("$ {command}\n{block}"),
                    format!("$ {command}\n{printed}"),
                );
                for (_, page) in &mut pages {
                    *page = page.replacen(&before, &after, 1);
                }
                break;
            }
            let (wanted, found) = (essence(&command, &block), essence(&command, &printed));
            if wanted == found {
                break;
            }
            assert!(
                Instant::now() < end,
                "{command}:\n{printed}\npage:\n{block}\n{wanted:?}\n{found:?}"
            );
        }
    }
    if write {
        for (path, page) in &pages {
            fs::write(path, page).unwrap();
        }
    }
    let all = commands(&readme);
    assert!(all.len() > 15, "{all:?}");
    for command in all
        .iter()
        .filter(|command| !SHOWN.contains(&command.as_str()))
    {
        let (code, _, error) = run(command, directory.path());
        assert_eq!(code, Some(0), "{command}: {error}");
    }
    // Or its end would be waited for.
    members[3].signal(Signal::CONT);
}

/// What the README has for Slurm, and what of it is another place here.
const PLUGIN: &str = "optional /usr/local/lib/slurm/muster_spank.so agent=/usr/local/bin/musterd";
const SRUN: &str = "srun --muster -N4 --mpi=none --kill-on-bad-exit=0 --no-kill ./workers";
const SBATCH: &str = "sbatch -N4 examples/slurm/service.sbatch ./workers";
const RUN: &str = "srun -N4 --mpi=none --no-kill --kill-on-bad-exit=0 muster run -n 8 -- ./app";

/// Workers of a batch script have no input, and end when they have none.
const UNATTENDED: &str = "#!/bin/sh\nprintf 'states\\nleave 0\\n' | \"$RANK\"\n";
/// Ranks that are counted.
const APP: &str = "#!/bin/sh\necho RAN\n";

#[test]
fn the_commands_for_slurm_work() {
    let readme = text();
    for command in [PLUGIN, SRUN, SBATCH, RUN] {
        assert!(readme.contains(command), "no page has {command}");
    }
    // Built, too.
    plugin(&program("musterd"));
    let agent = program("musterd").display().to_string();
    let library = program("libmuster_spank.so").display().to_string();
    let line = PLUGIN
        .replace("/usr/local/lib/slurm/muster_spank.so", &library)
        .replace("/usr/local/bin/musterd", &agent);
    let Some(cluster) = Cluster::start(&(line + "\n")) else {
        return;
    };
    let here = |name: &str| cluster.folder().join(name);
    symlink(rank_program(), here("workers")).unwrap();
    symlink(workspace().join("examples"), here("examples")).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = program("musterd").parent().unwrap().display().to_string();
    let shell = |command: &str| {
        let mut shell = cluster.command("sh");
        shell
            .args(["-c", &format!("cd \"$LAB\" && exec {command}")])
            .env("PATH", format!("{programs}:{path}"))
            .env("SLURM_LABELIO", "1")
            .env("SBATCH_WAIT", "1");
        shell
    };
    let mut run = cluster.run(&mut shell(SRUN));
    run.await_view(0..NODES, &all_alive());
    run.send("leave 0");
    assert!(run.end().success(), "{:?}", run.errors());
    let script = |name: &str, text: &str| {
        let _ = fs::remove_file(here(name));
        fs::write(here(name), text).unwrap();
        fs::set_permissions(here(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("workers", UNATTENDED);
    let output = shell(SBATCH).env("RANK", rank_program()).output();
    let output = output.expect("nsenter can be started");
    let files = fs::read_dir(cluster.folder()).unwrap().flatten();
    let mut files = files.filter(|file| file.file_name().to_string_lossy().ends_with(".out"));
    let said = fs::read_to_string(files.next().expect("its output").path()).unwrap();
    for answer in ["STATES n", "LEFT true"] {
        let answers = said.lines().filter(|line| line.contains(answer));
        assert_eq!(answers.count(), NODES, "{answer}: {said}{output:?}");
    }
    assert!(output.status.success(), "{said}{output:?}");
    assert!(!said.contains("service.sbatch"), "{said}");
    script("app", APP);
    let mut command = shell(RUN);
    command.env("HOME", cluster.folder());
    command.env("TMPDIR", cluster.folder());
    let output = command.output().expect("nsenter can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    let ran = said.lines().filter(|line| line.contains("RAN"));
    assert_eq!(
        (ran.count(), output.status.code()),
        (8, Some(0)),
        "{output:?}"
    );
    cluster.await_clean();
}
