//! A new user's path: `examples/README.md` followed literally, with `make install` done before.

use muster_tests::workspace;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The commands of a page, block by block.
fn commands(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    let commands: String = blocks
        .map(|rest| rest.split_once("```").map_or("", |(block, _)| block))
        .collect();
    assert!(commands.lines().count() > 10, "{commands}");
    commands
}

/// An installed tree, as `make install PREFIX=` makes it of the release build.
fn install(prefix: &Path) {
    let output = Command::new("sh")
        .arg("scripts/install")
        .arg(prefix)
        .arg(prefix)
        .current_dir(workspace())
        .output()
        .expect("sh");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/install: {words}");
}

fn follow(folder: &Path, prefix: &Path, commands: &str) -> Output {
    Command::new("timeout")
        .args(["--kill-after=5", "300", "sh", "-euc", commands])
        .current_dir(folder)
        .env("PREFIX", prefix)
        .env("MUSTER_DIR", folder)
        .env("MUSTER_LINGER_MS", "500")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_btl", "self,vader")
        .env("OMPI_MCA_pml", "ob1")
        .stdin(Stdio::null())
        .output()
        .expect("timeout")
}

#[test]
fn the_examples_page_works_as_it_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("prefix");
    install(&prefix);
    let copy = folder.path().join("examples");
    fs::create_dir(&copy).expect("a folder");
    for entry in fs::read_dir(workspace().join("examples")).expect("examples") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), copy.join(entry.file_name())).expect("copied");
    }
    let page = fs::read_to_string(copy.join("README.md")).expect("the page");
    let output = follow(&copy, &prefix, &commands(&page));
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}\n{said}\n{complained}",
        output.status
    );
    for expected in [
        "node right left",
        "from step 0\n",
        "again\n",
        "right: as in one process",
        "rank 0 takes over the share of rank 2; it was told:\n  rank 2 on ",
        "pi is 3.1415",
    ] {
        assert!(
            said.contains(expected),
            "no {expected:?} in:\n{said}\n{complained}"
        );
    }
    assert!(complained.contains("1 of 3 ranks died"), "{complained}");
    // The second run of the job began where the first had its last common checkpoint.
    let restarted = said
        .lines()
        .filter(|line| line.starts_with("from step "))
        .nth(1);
    let step: Option<u64> = restarted.and_then(|line| line["from step ".len()..].parse().ok());
    assert!(
        step.is_some_and(|step| step > 0 && step <= 50_000),
        "{said}"
    );
}
