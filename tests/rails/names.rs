//! Agents on a net whose provider has addresses of its own kind (`cxi`). No machine of the project has the hardware, so
//! the provider for tests of `muster-fabric` replaces it. The same mechanism with a real provider: `put_get`, psm3.

use muster_tests::Member;
use muster_tests::admin::Admin;
use muster_tests::workspace;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Compiles the provider into this directory.
fn compile(directory: &Path) {
    let script = "exec ${CC:-cc} -std=gnu11 -Wall -Wextra -Werror -fPIC -shared -DRDM \"$0\" -o \"$1\" \
                  $(pkg-config --cflags --libs libfabric)";
    let mut compiler = Command::new("sh");
    let source = workspace().join("fabric/tests/provider/device.c");
    compiler.args(["-c", script]).arg(source);
    let status = compiler.arg(directory.join("libdevice-fi.so")).status();
    assert!(status.unwrap().success(), "the provider does not compile");
}

/// The NIDs that `muster rails` prints contain the provider's addresses, and are seeds. A member that has started again
/// has other addresses, which its join tells the others.
#[test]
fn agents_meet_by_addresses_that_only_their_provider_knows() {
    let directory = tempfile::tempdir().unwrap();
    compile(directory.path());
    let path = directory.path().as_os_str();
    let variables = [
        ("FI_PROVIDER_PATH", path),
        ("MUSTER_TEST_PROVIDER", OsStr::new("cxi")),
    ];
    let start = |index: usize, seed: &str| {
        let rail = format!("127.41.90.{index}@cxi0");
        let mut arguments = vec!["--rail", &rail];
        if !seed.is_empty() {
            arguments.extend(["--seed", seed]);
        }
        let name = format!("n{index}");
        Member::start_with(directory.path(), &name, &arguments, &variables)
    };
    let nid = |index: usize| {
        let admin = Admin::of(directory.path(), &format!("n{index}"));
        let rails = admin.await_answer(&["rails", "-o", "json"], |answer| answer.contains("cxi0/"));
        let rails: Value = serde_json::from_str(&rails).expect("JSON");
        rails["rails"][0]["nid"].as_str().expect("a NID").to_owned()
    };
    let first = start(1, "");
    let seed = nid(1);
    assert!(seed.starts_with("127.41.90.1@cxi0/"), "{seed}");
    let members = [first, start(2, &seed), start(3, &seed)];
    Member::await_all_up(&members);
    let before = nid(2);
    let [first, second, third] = members;
    second.kill();
    first.expect_down("n2");
    third.expect_down("n2");
    let second = start(2, &seed);
    for member in [&first, &third] {
        assert_eq!(member.next_line(), "UP n2", "at {}", member.name);
    }
    assert_ne!(nid(2), before);
    third.kill();
    first.expect_down("n3");
    second.wait_for(&["UP n1".to_owned(), "DOWN n3".to_owned()]);
}
