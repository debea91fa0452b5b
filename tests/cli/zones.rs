//! `muster zones plan`: wrong input names the value, the reason and the remedy.

use muster_tests::program;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

fn plan(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("muster"))
        .args(["zones", "plan"])
        .args(arguments)
        .env_remove("SLURM_JOB_NODELIST")
        .output()
        .expect("muster can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let errors = text(&output.stderr);
    assert!(!errors.contains("panicked"), "{errors}");
    (output.status.code(), text(&output.stdout), errors)
}

#[test]
fn a_plan_of_a_million_nodes_is_printed_on_one_screen() {
    let (code, table, errors) = plan(&["--nodes", "n[0000000-1048575]"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(
        table.starts_with(
            "1048576 nodes by the node list: 4096 zones of 256 members, above them 16 zones of 512 members, above \
             them 1 zone of 32 members\n"
        ),
        "{table}"
    );
    assert!(
        table.contains("Not shown: 4076 of level 0; --all shows them."),
        "{table}"
    );
    assert!(table.lines().count() < 50, "{table}");
}

/// The commands of the guide, with what scontrol prints for a Slurm of two switches.
#[test]
fn the_commands_of_the_guide_work() {
    let commands = [
        "muster zones plan --nodes 'n[0001-4096]'",
        "scontrol show topology | muster zones plan --nodes 'n[1-4]' --topology - --each-switch",
    ];
    let folder = tempfile::tempdir().unwrap();
    let scontrol = folder.path().join("scontrol");
    let lines = "SwitchName=s1 Level=0 Nodes=n[1-2]\\nSwitchName=s2 Level=0 Nodes=n[3-4]\\n";
    std::fs::write(&scontrol, format!("#!/bin/sh\nprintf '{lines}'\n")).unwrap();
    std::fs::set_permissions(&scontrol, std::fs::Permissions::from_mode(0o755)).unwrap();
    let programs = program("muster");
    let path = format!(
        "{}:{}:/usr/bin:/bin",
        folder.path().display(),
        programs.parent().unwrap().display()
    );
    for (command, begins) in commands.iter().zip([
        "4096 nodes by the node list: 16 zones of 256",
        "4 nodes by standard input: 2 zones of 2",
    ]) {
        let output = Command::new("sh")
            .args(["-c", command])
            .env("PATH", &path)
            .output()
            .unwrap();
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && table.starts_with(begins),
            "{command}: {output:?}"
        );
    }
}

#[test]
fn wrong_sources_are_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let hole = file("hole", "a: n[1-2]\n");
    let two = file("two", "a: n[1-3]\nb: n[3-4]\n");
    let halves = file("halves", "a: n[1-2]\nb: n[3-4]\n");
    let switches = file(
        "switches",
        "SwitchName=s1 Nodes=n[1-3]\nSwitchName=s2 Nodes=n4\n",
    );
    let bad = file("bad", "SwitchName=s1\n");
    let cases: [(&[&str], i32, &[&str]); 9] = [
        (&[], 2, &["--nodes"]),
        (&["--nodes", "n[1-"], 2, &["n[1-", "--nodes"]),
        (
            &["--nodes", "n1,n1"],
            2,
            &["node n1 is in the list of nodes twice"],
        ),
        (
            &["--nodes", "n[1-4]", "--map", &hole],
            7,
            &["n[3-4] are in no zone: add them to a zone", &hole],
        ),
        (
            &["--nodes", "n[1-4]", "--map", &two],
            7,
            &["node n3 is in zone a and in zone b"],
        ),
        (
            &["--nodes", "n[1-4]", "--map", "/nonexistent"],
            1,
            &["/nonexistent", "name a readable file"],
        ),
        (
            &["--nodes", "n[1-4]", "--pattern", "(r*)n*"],
            7,
            &["(r*)n*", "node n1 does not fit"],
        ),
        (
            &["--nodes", "n[1-4]", "--topology", &bad],
            7,
            &["line 1", "neither Nodes nor Switches"],
        ),
        (
            &[
                "--nodes",
                "n[1-4]",
                "--map",
                &halves,
                "--topology",
                &switches,
                "--each-switch",
            ],
            7,
            &[
                &halves,
                &switches,
                "n1 and n3",
                "remove one of the two sources",
            ],
        ),
    ];
    for (arguments, expected, words) in cases {
        let (code, _, errors) = plan(arguments);
        assert_eq!(code, Some(expected), "{arguments:?}: {errors}");
        for word in words {
            assert!(
                errors.contains(word),
                "{arguments:?}: {word:?} is missing in:\n{errors}"
            );
        }
    }
}
