//! Whole jobs with zones.

use muster_sim::{Change, JobPlan, JobReport, JobScenario, Span, run_job};

fn plan(nodes: usize, zone: usize, above: usize, changes: &[Change]) -> JobPlan {
    JobPlan {
        nodes,
        zone,
        above,
        timing: "ours".to_owned(),
        delay_us: Span {
            low: 100,
            high: 200,
        },
        changes: changes.to_vec(),
    }
}

fn run(plan: &JobPlan, seed: u64, threads: usize) -> JobReport {
    run_job(plan, seed, threads, &mut |_| {})
}

const ALL: [Change; 7] = [
    Change::Rank,
    Change::Silent,
    Change::Agent,
    Change::Several,
    Change::Supervisors,
    Change::Rack,
    Change::Zone,
];

/// ZM-15, ZM-16: every node of a job of three levels knows of every loss.
#[test]
fn every_node_of_a_job_knows_of_every_loss() {
    let report = run(&plan(256, 8, 16, &ALL), 1, 2);
    assert!(!report.is_wrong(), "{report:?}");
    assert_eq!((report.zones, report.levels), (32, 3));
    let what: Vec<&str> = report.changes.iter().map(|changed| changed.what).collect();
    let names = ALL.map(Change::name);
    assert_eq!(what, [&["boot"][..], &names].concat());
    let counts: Vec<usize> = report.changes.iter().map(|changed| changed.count).collect();
    assert_eq!(counts[..6], [256, 1, 1, 1, 16, 2]);
    // A rank's end is known without a deadline, the silence of a node is not.
    let known = |change: usize| report.changes[change].known;
    assert!(known(1).max_us < 10_000, "{report:?}");
    assert!(known(2).p50_us > 30_000, "{report:?}");
}

#[test]
fn the_course_of_a_job_depends_on_the_seed_and_not_on_the_threads() {
    let plan = plan(128, 8, 16, &[Change::Silent, Change::Several]);
    let one = run(&plan, 7, 1);
    assert_eq!(run(&plan, 7, 2), one);
    assert_eq!(run(&plan, 7, 5), one);
    assert_ne!(run(&plan, 8, 2).digest, one.digest);
}

#[test]
fn each_scenario_of_a_job_can_be_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scenarios");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let texts = files.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()));
    let jobs: Vec<_> = texts
        .filter(|(_, text)| JobScenario::is_one(text))
        .collect();
    assert!(jobs.len() >= 2, "{jobs:?}");
    for (path, text) in jobs {
        let scenario = JobScenario::read(&text);
        let scenario = scenario.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(
            Some(scenario.name.as_str()),
            path.file_stem().and_then(|stem| stem.to_str())
        );
        assert!(scenario.name.starts_with("job-"));
    }
}

#[test]
fn a_plan_that_cannot_be_is_refused_with_its_line() {
    let text = |nodes: &str, zone: &str, timing: &str| {
        format!(
            "name = 'x'\nguards = 'y'\n[job]\nnodes = {nodes}\nzone = {zone}\nabove = 16\ndelay_us = [30, 200]\n\
             timing = '{timing}'\nchanges = ['rank']\n"
        )
    };
    let read = |nodes, zone, timing| JobScenario::read(&text(nodes, zone, timing));
    assert!(read("128", "8", "ours").is_ok());
    let cases = [
        (("7", "4", "ours"), "line 4: job.nodes"),
        (("2000000", "256", "ours"), "line 4: job.nodes"),
        (("64", "1", "ours"), "line 5: job.zone"),
        (
            ("128", "16", "ours"),
            "line 5: job.zone = 16: fewer than 16 base zones; lower job.zone",
        ),
        (("128", "8", "mine"), "line 8: job.timing = mine"),
    ];
    for ((nodes, zone, timing), start) in cases {
        let error = read(nodes, zone, timing).unwrap_err().to_string();
        assert!(error.starts_with(start), "{error}");
    }
    let twice = text("128", "8", "ours").replace("['rank']", "['rank', 'zone', 'rank']");
    let error = JobScenario::read(&twice).unwrap_err().to_string();
    assert_eq!(
        error,
        "line 9: job.changes = rank: it occurs twice; name each change once"
    );
    let error = JobScenario::read("name = 'x'\n[job]\nsize = 3\n").unwrap_err();
    assert!(error.to_string().contains("tests/scenarios"), "{error}");
}
