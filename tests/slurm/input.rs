//! Errors of users, administrators and machines in a real Slurm. A wrong option ends srun before there is a
//! step. With any other error the job runs, and the user gets a message with the reason, once per node
//! (slurm-1).

use muster_tests::cluster::{Cluster, NODES, signal};
use muster_tests::process::wait_for_end;
use muster_tests::program;
use muster_tests::steps::{LIVES_ON, all_alive, on_host, plugin, step};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A user other than root that every system has.
const OTHER_USER: &str = "65534";

/// Runs `hostname` on these nodes, with these variables. All of them must answer. Returns all other output
/// lines.
fn hostnames(
    cluster: &Cluster,
    nodes: &str,
    options: &[&str],
    variables: &[(&str, &str)],
) -> Vec<String> {
    let mut command = cluster.command("srun");
    command
        .args(["--nodelist", nodes])
        .args(options)
        .arg("hostname");
    let output = command.envs(variables.iter().copied()).output();
    let (printed, errors) = texts(&output.expect("nsenter can be started"));
    let mut names: Vec<&str> = printed.lines().collect();
    names.sort_unstable();
    let (_, shown) = cluster.output_of(&["scontrol", "show", "hostnames", nodes]);
    assert_eq!(names, shown.lines().collect::<Vec<_>>(), "{errors}");
    // The message that it waits for nodes is no error.
    let lines = errors
        .lines()
        .filter(|line| !line.starts_with("srun: job "));
    lines.map(str::to_owned).collect()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Asserts that this node is reported once, with these words, and no other node.
#[track_caller]
fn assert_reported(printed: &[String], node: usize, words: &[&str]) {
    let reports: Vec<&String> = printed
        .iter()
        .filter(|line| line.contains("runs without Muster"))
        .collect();
    let place = format!("node n{node} runs without Muster: ");
    assert!(
        reports.len() == 1 && reports[0].contains(&place),
        "{printed:#?}"
    );
    assert!(
        words.iter().all(|word| reports[0].contains(word)),
        "{words:?}: {reports:?}"
    );
}

#[test]
fn wrong_options_end_srun_and_limits_do_not() {
    let line = plugin(&program("musterd"));
    let Some(cluster) = Cluster::start(&line) else {
        return;
    };
    for (option, words) in [
        ("--muster=profile=hasty", ["hasty", "standard"]),
        ("--muster=protocol=gossip", ["gossip", "overlay or age"]),
        ("--muster=what", ["what", "profile="]),
    ] {
        let (status, printed) = cluster.output_of(&["srun", option, "hostname"]);
        let said_all = words.iter().all(|word| printed.contains(word));
        assert!(
            !status.success() && said_all && !printed.contains("n1\n"),
            "{printed}"
        );
    }
    // Two nodes, and one message.
    let printed = hostnames(&cluster, "n[1-2]", &["--muster=profile=fast"], &[]);
    assert_eq!(printed.len(), 1, "{printed:#?}");
    assert!(
        printed[0].contains("profile=fast") && printed[0].contains("has standard"),
        "{printed:#?}"
    );
    let mut command = cluster.command("srun");
    let output = command
        .args(["--muster=profile=fast", "sh", "-c", "echo $MUSTER_PROFILE"])
        .output();
    assert_eq!(
        texts(&output.expect("nsenter can be started")).0,
        "standard\n"
    );
    // The same for the environment's settings.
    let printed = hostnames(
        &cluster,
        "n[1-2]",
        &["--muster"],
        &[("MUSTER_PROFILE", "fast")],
    );
    assert!(
        printed.len() == 1 && printed[0].contains("has standard"),
        "{printed:#?}"
    );
    let printed = hostnames(
        &cluster,
        "n1",
        &["--muster"],
        &[("MUSTER_PROFILE", "hasty")],
    );
    assert_reported(&printed, 1, &["hasty"]);
    // Without the option there is no message.
    assert_eq!(hostnames(&cluster, "n1", &[], &[]), [""; 0]);
    cluster.set_plugins(&line.replace("fastest", "colour"));
    let printed = hostnames(&cluster, "n1", &[], &[]);
    assert!(
        printed.iter().any(|line| line.contains("colour")),
        "{printed:#?}"
    );
    cluster.await_clean();
}

/// A user's environment variables apply to the plugin's agents; variables that the user does not export have
/// no effect (slurm-1).
#[test]
fn the_users_environment_applies() {
    let line = plugin(&program("musterd"));
    let Some(cluster) = Cluster::start(&line) else {
        return;
    };
    let script = "echo $MUSTER_JOB $MUSTER_PROFILE; \"$0\" config show --origin";
    let muster = program("muster").display().to_string();
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let mut command = cluster.command("srun");
        command.args(["--nodelist=n1", "--muster"]).args(options);
        command.args(["/bin/sh", "-c", script, &muster]);
        let output = command.envs(variables.iter().copied()).output();
        let (printed, errors) = texts(&output.expect("nsenter can be started"));
        assert!(printed.starts_with("slurm-"), "{printed}{errors}");
        printed
    };
    let has = |printed: &str, profile: &str| {
        let mut lines = printed.lines();
        lines.next().is_some_and(|line| line.ends_with(profile))
            && lines.any(|line| line.contains("profile") && line.contains(profile))
    };
    let quiet = [("MUSTER_PROFILE", "quiet")];
    let printed = run(&[], &quiet);
    assert!(has(&printed, "quiet"), "{printed}");
    let printed = run(&["--muster=profile=standard"], &quiet);
    assert!(has(&printed, "standard"), "{printed}");
    // Variables that are not in the list are not passed, except the key.
    let names = "--export=MUSTER_DIR,MUSTER_LINGER_MS";
    let printed = run(&[names], &quiet);
    assert!(has(&printed, "standard"), "{printed}");
    run(&[], &[("SLURM_EXPORT_ENV", "MUSTER_DIR,MUSTER_LINGER_MS")]);
    cluster.await_clean();
}

/// Writes a copy of the plugin with the version of another Slurm release.
fn of_another_slurm(cluster: &Cluster) -> PathBuf {
    let own = program("libmuster_spank.so");
    let output = std::process::Command::new("nm")
        .args(["--dynamic", "--format=posix"])
        .arg(&own)
        .output();
    let names = texts(&output.expect("nm")).0;
    let line = names
        .lines()
        .find(|line| line.starts_with("plugin_version "));
    let address = line.and_then(|line| usize::from_str_radix(line.split(' ').nth(2)?, 16).ok());
    let mut bytes = fs::read(&own).expect("the plugin");
    let at = address.expect("the plugin has a version");
    // Constants are in the first segment, where offsets in the file are addresses.
    let number = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert!((0x0014_0000..0x0040_0000).contains(&number), "{number:#x}");
    bytes[at..at + 4].copy_from_slice(&(number + 0x0100).to_le_bytes());
    let other = cluster.folder().join("of_another_slurm.so");
    fs::write(&other, bytes).expect("a file");
    other
}

#[test]
fn an_incompatible_plugin_is_skipped() {
    let line = plugin(&program("musterd"));
    let Some(cluster) = Cluster::start(&line) else {
        return;
    };
    let own = program("libmuster_spank.so").display().to_string();
    for other in [
        of_another_slurm(&cluster),
        "/nonexistent/muster_spank.so".into(),
    ] {
        let other = other.display().to_string();
        cluster.set_plugins(&(line.trim_end().replace(&own, &other) + " default=on\n"));
        let printed = hostnames(&cluster, "n[1-4]", &[], &[]);
        assert!(
            printed
                .iter()
                .all(|line| !line.contains("runs without Muster")),
            "{printed:#?}"
        );
        // srun does not know the option, and reports that before there is a step.
        let (status, printed) = cluster.output_of(&["srun", "--muster", "hostname"]);
        assert!(
            !status.success() && printed.contains("--muster"),
            "{printed}"
        );
    }
    assert!(
        cluster.has_logged("Incompatible Slurm plugin"),
        "{}",
        cluster.logs()
    );
    cluster.await_clean();
}

/// A node whose slurmd does not have the plugin, or has an incompatible one: the others have their agents,
/// all tasks run, and a rank of that node gets an error that names what is missing (slurm-1).
#[test]
fn a_node_without_the_plugin() {
    let line = plugin(&program("musterd"));
    let Some(cluster) = Cluster::start(&line) else {
        return;
    };
    let own = program("libmuster_spank.so").display().to_string();
    let other = of_another_slurm(&cluster).display().to_string();
    for (name, theirs) in [
        ("none", String::new()),
        ("other", line.replace(&own, &other)),
    ] {
        let file = cluster.folder().join(name);
        fs::write(&file, theirs).expect("a file");
        let mount = format!("mount --bind \"$LAB/{name}\" \"$LAB/plugstack.conf\"");
        restart_slurmd(&cluster, 2, &mount);
        let printed = hostnames(&cluster, "n[1-4]", &["--muster"], &[]);
        assert_eq!(printed, [""; 0]);
        let mut run = step(&cluster, &[&["--muster"], &LIVES_ON[..]].concat());
        run.await_line(&["1: REFUSED", "the plugin on this node", "plugstack.conf"]);
        let rest = all_alive().replace("n2=Alive ", "");
        run.await_view([0, 2, 3], &rest.replace("1=Alive 2", "1=Unknown 2"));
        run.send("leave 0");
        run.end();
    }
    assert!(cluster.has_logged("Incompatible Slurm plugin"));
    cluster.await_clean();
}

/// Restarts a node's slurmd, with a mount of its own that this line makes.
fn restart_slurmd(cluster: &Cluster, node: usize, mount: &str) {
    for daemon in cluster.on_node(node, "slurmd") {
        signal(&daemon, Signal::KILL);
        wait_for_end(daemon.pid);
    }
    let line = format!("exec unshare --mount sh -ec '{mount}; exec slurmd -N n{node}'");
    on_host(cluster, node, &line);
    cluster.await_state(node, "idle");
}

/// slurm-1.
#[test]
fn a_lack_on_one_node_is_reported_for_that_node() {
    let agent = program("musterd");
    let line = plugin(&agent);
    let Some(cluster) = Cluster::start(&line) else {
        return;
    };
    // A rail that three of four nodes have.
    for node in [1, 3, 4] {
        let line = "ip link add rail1 type veth peer name other1; ip link set other1 up";
        on_host(&cluster, node, line);
        let line = format!("ip addr add 10.67.0.{node}/24 dev rail1");
        on_host(&cluster, node, &line);
        on_host(&cluster, node, "ip link set rail1 up");
    }
    let printed = hostnames(
        &cluster,
        "n[1-4]",
        &["--muster=rails=eth0@udp0+rail1@udp1"],
        &[],
    );
    assert_reported(&printed, 2, &["rail1"]);
    // An agent that three of four nodes have: on one there is another file system at its path.
    let folder = cluster.folder().join("bin");
    fs::create_dir(&folder).expect("a folder");
    fs::copy(&agent, folder.join("musterd")).expect("a copy");
    cluster.set_plugins(&plugin(&folder.join("musterd")));
    restart_slurmd(&cluster, 2, "mount -t tmpfs none \"$LAB/bin\"");
    let printed = hostnames(&cluster, "n[1-4]", &["--muster"], &[]);
    assert_reported(&printed, 2, &["bin/musterd", "No such file"]);
    // A line that only one of them cannot read.
    let wrong = line.trim_end().to_owned() + " colour=red\n";
    fs::write(cluster.folder().join("wrong"), wrong).expect("a file");
    let mount = "mount --bind \"$LAB/wrong\" \"$LAB/plugstack.conf\"";
    restart_slurmd(&cluster, 2, mount);
    let printed = hostnames(&cluster, "n[1-4]", &["--muster"], &[]);
    assert_reported(&printed, 2, &["colour=red", "plugstack.conf"]);
    assert_eq!(hostnames(&cluster, "n[1-4]", &[], &[]), [""; 0]);
    assert_eq!(
        hostnames(&cluster, "n[1-4]", &["--muster=off"], &[]),
        [""; 0]
    );
    cluster.await_clean();
}

/// Mounts a file system of this size in the cluster. Returns its folder.
fn mount(cluster: &Cluster, name: &str, options: &str) -> String {
    let folder = cluster.folder().join(name).display().to_string();
    fs::create_dir(&folder).expect("a folder");
    let options = format!("mode=1777,{options}");
    let (status, printed) =
        cluster.output_of(&["mount", "-t", "tmpfs", "-o", &options, "none", &folder]);
    assert!(status.success(), "{printed}");
    folder
}

/// slurm-1.
#[test]
fn directories_that_cannot_be_used_are_named() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let cases = [
        ("/proc/nowhere".to_owned(), "No such file"),
        (mount(&cluster, "readonly", "ro"), "Read-only file system"),
        // Only the root directory of it.
        (mount(&cluster, "full", "nr_inodes=1"), "No space left"),
        (mount(&cluster, "fuller", "nr_inodes=2"), "No space left"),
    ];
    for (folder, why) in &cases {
        let variables = [("MUSTER_DIR", folder.as_str())];
        let printed = hostnames(&cluster, "n3", &["--muster"], &variables);
        assert_reported(&printed, 3, &[folder, why]);
    }
    // Without space for a journal, or for the key, there is an agent, which reports what it lacks.
    for (name, variable, what) in [
        ("journal", "MUSTER_JOURNAL", "the journal "),
        ("place", "MUSTER_DIR", "the job key"),
    ] {
        let full = mount(&cluster, name, "size=4k");
        let fill = format!("head -c 4096 /dev/zero > {full}/fill");
        let (status, printed) = cluster.output_of(&["sh", "-c", &fill]);
        assert!(status.success(), "{printed}");
        let variables = [(variable, full.as_str())];
        let printed = hostnames(&cluster, "n[1-4]", &["--muster"], &variables);
        let place = |node| format!("node n{node}: ");
        for node in 1..=NODES {
            let reports: Vec<_> = printed
                .iter()
                .filter(|line| line.contains(&place(node)))
                .collect();
            assert!(reports.len() == 1, "{printed:#?}");
            let words = [what, &full, "No space left"];
            assert!(
                words.iter().all(|word| reports[0].contains(word)),
                "{reports:?}"
            );
        }
        assert_eq!(printed.len(), NODES, "{printed:#?}");
    }
    cluster.await_clean();
}

/// A key that its user cannot read, for agents in a step of their own: they report the key and the reason,
/// and the job's other step runs.
#[test]
fn a_key_that_cannot_be_read_is_named() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let copy = |name: &str, from: &Path, mode| {
        let own = cluster.folder().join(name);
        fs::copy(from, &own).expect("a copy");
        fs::set_permissions(&own, fs::Permissions::from_mode(mode)).expect("a mode");
        own
    };
    let agent = copy("musterd", &program("musterd"), 0o755);
    fs::write(cluster.folder().join("digits"), "ab".repeat(32) + "\n").expect("a file");
    let digits = cluster.folder().join("digits");
    let (others, open) = (
        copy("others.key", &digits, 0o600),
        copy("open.key", &digits, 0o644),
    );
    std::os::unix::fs::chown(&open, Some(65_534), Some(65_534)).expect("another owner");
    let script = r#"srun -l musterd --serve --key-file "$KEY"; srun hostname"#;
    for (key, why) in [(&others, "Permission denied"), (&open, "chmod 600")] {
        let mut command = cluster.command("setpriv");
        command.args([
            "--reuid",
            OTHER_USER,
            "--regid",
            OTHER_USER,
            "--clear-groups",
        ]);
        command.args([
            "salloc",
            "--quiet",
            "--nodes=4",
            "sh",
            "-c",
            &script.replace("musterd", &agent.display().to_string()),
        ]);
        command
            .env("KEY", key)
            .env("MUSTER_JOB", "keys")
            .env("MUSTER_RAILS", "eth0@udp0");
        let (printed, errors) = texts(&command.output().expect("nsenter can be started"));
        assert_eq!(printed.lines().count(), NODES, "{printed}{errors}");
        let key = key.display().to_string();
        for node in 0..NODES {
            let of_node =
                |line: &&str| line.starts_with(&format!("{node}: ")) && line.contains(&key);
            let lines: Vec<&str> = errors.lines().filter(of_node).collect();
            assert!(lines.len() == 1 && lines[0].contains(why), "{errors}");
        }
    }
    cluster.await_clean();
}
