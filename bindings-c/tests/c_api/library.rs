//! The installed libmuster: what it exports, what it requires, what pkg-config and CMake report.

use crate::common::{attempt, compiler, functions, header, here, installed, run};
use std::process::Command;

/// The functions of the version script.
fn mapped() -> Vec<String> {
    let map = std::fs::read_to_string(here().join("muster.map")).expect("the map is checked in");
    let mut names: Vec<String> = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("muster_"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

fn dynamic_entries(kind: &str) -> Vec<String> {
    let listing = run(Command::new("readelf")
        .arg("-dW")
        .arg(installed().join("lib/libmuster.so")));
    listing
        .lines()
        .filter(|line| line.contains(kind))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()))
        .collect()
}

#[test]
fn header_map_and_library_name_the_same_functions() {
    let declared: Vec<String> = functions(&header())
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(declared, mapped(), "muster.h and muster.map");

    let listing = run(Command::new("nm")
        .args(["-D", "--defined-only", "--with-symbol-versions"])
        .arg(installed().join("lib/libmuster.so")));
    let mut exported: Vec<String> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .filter(|name| name != "MUSTER_0.1" && name != "MUSTER_0.1@@MUSTER_0.1")
        .collect();
    exported.sort();
    let versioned: Vec<String> = declared
        .iter()
        .map(|name| format!("{name}@@MUSTER_0.1"))
        .collect();
    assert_eq!(exported, versioned, "muster.h and libmuster.so");
}

/// check.h calls every function that takes a context with NULL, a stale one and a forked parent's.
#[test]
fn every_function_with_a_context_is_called_with_an_unusable_one() {
    let checked = std::fs::read_to_string(here().join("tests/c_api/check.h")).expect("a header");
    for (name, declared) in functions(&header()) {
        if declared.contains("muster_ctx_t *context") {
            assert!(checked.contains(&format!("{name}(context")), "{name}");
        }
    }
}

/// Functions with another name in Rust, if the documentation of `muster_client` has it.
const OTHERWISE_IN_RUST: [&str; 12] = [
    "cause_name",
    "error_name",
    "event_name",
    "get_fd",
    "init",
    "key_hash",
    "last_error_message",
    "node_state_name",
    "rank_state_name",
    "set_callback",
    "strerror",
    "version",
];

/// The Rust API has the names of the C API, except those of the list.
#[test]
fn the_client_in_rust_has_the_same_names() {
    let client = here().join("../runtime/client/src");
    let files = std::fs::read_dir(client).expect("the client's sources");
    let sources: Vec<String> = files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.is_file())
        .map(|path| std::fs::read_to_string(path).expect("a source"))
        .collect();
    let missing: Vec<String> = mapped()
        .iter()
        .filter_map(|name| name.strip_prefix("muster_"))
        .filter(|name| {
            let method = format!("    pub fn {name}(");
            !sources.iter().any(|source| source.contains(&method))
        })
        .map(str::to_owned)
        .collect();
    assert_eq!(missing, OTHERWISE_IN_RUST);
}

/// Functions that connect, leave or deliver events.
const NOT_FOR_CALLBACKS: [&str; 5] = [
    "muster_dispatch",
    "muster_finalize",
    "muster_init",
    "muster_leave",
    "muster_set_callback",
];

/// Every function is called inside a callback and by many threads at once: by every_call.h or by both programs.
#[test]
fn every_function_is_called_inside_a_callback_and_by_many_threads() {
    let read = |name: &str| {
        let path = here().join("tests/c_api").join(name);
        std::fs::read_to_string(path).expect("a source")
    };
    let (all, inside, threads) = (
        read("every_call.h"),
        read("bad_use.c"),
        read("many_threads.c"),
    );
    let (_, inside) = inside
        .split_once("static void call_all(")
        .expect("the callback");
    let (inside, _) = inside.split_once("\n}").expect("its end");
    assert!(inside.contains("make_all_calls("), "{inside}");
    assert_eq!(threads.matches("make_all_calls(").count(), 3, "{threads}");
    for (name, _) in functions(&header()) {
        let call = format!("{name}(");
        if NOT_FOR_CALLBACKS.contains(&name.as_str()) {
            assert!(inside.contains(&call) && threads.contains(&call), "{name}");
        } else {
            assert!(
                all.contains(&format!("CALL({call}"))
                    || all.contains(&format!("CALL_NON_NULL({call}")),
                "{name}"
            );
        }
    }
}

/// A rank loads the C library and no other library for Muster.
#[test]
fn the_library_needs_the_c_library_only() {
    let needed = dynamic_entries("(NEEDED)");
    assert!(needed.iter().any(|name| name == "libc.so.6"), "{needed:?}");
    let others: Vec<&String> = needed
        .iter()
        .filter(|name| *name != "libc.so.6" && !name.starts_with("ld-linux"))
        .collect();
    assert!(others.is_empty(), "libmuster.so also needs {others:?}");
}

#[test]
fn the_library_has_its_name_and_its_links() {
    assert_eq!(dynamic_entries("(SONAME)"), ["libmuster.so.0"]);
    for link in ["libmuster.so", "libmuster.so.0"] {
        let target = std::fs::canonicalize(installed().join("lib").join(link)).expect("no link");
        assert_eq!(target.file_name(), Some("libmuster.so.0.1.0".as_ref()));
    }
    assert_eq!(
        env!("CARGO_PKG_VERSION"),
        "0.1.0",
        "muster.h and the workspace have one version"
    );
}

/// pkg-config finds a tree that was moved.
#[test]
fn pkg_config_finds_a_tree_that_was_moved() {
    let moved = tempfile::tempdir().expect("a temporary folder");
    let tree = moved.path().join("opt");
    run(Command::new("cp").arg("-a").arg(installed()).arg(&tree));
    let query = |what: &str| {
        run(Command::new("pkg-config")
            .args([what, "muster"])
            .env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig")))
    };
    assert_eq!(query("--modversion").trim(), "0.1.0");
    let flags = format!("{} {}", query("--cflags"), query("--libs"));
    for word in flags.split_whitespace() {
        if let Some(path) = word.strip_prefix("-I").or(word.strip_prefix("-L")) {
            let path = std::fs::canonicalize(path).expect("pkg-config names a folder");
            assert!(
                path.starts_with(std::fs::canonicalize(&tree).expect("exists")),
                "{path:?}"
            );
        }
    }
    assert!(flags.contains("-lmuster"), "{flags}");

    // A program also finds the library when it runs, with the rpath of pkg-config.
    let rpath = run(Command::new("pkg-config")
        .args(["--variable=rpath", "muster"])
        .env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig")));
    let (source, binary) = (moved.path().join("user.c"), moved.path().join("user"));
    let program = "#include <muster.h>\nint main(void) { return !muster_strerror(0); }\n";
    std::fs::write(&source, program).expect("written");
    let options = flags.split_whitespace().chain(rpath.split_whitespace());
    let mut cc = compiler("CC", "cc");
    run(cc.arg(&source).args(options).arg("-o").arg(&binary));
    run(Command::new(&binary).env_remove("LD_LIBRARY_PATH"));
}

/// CMake finds a tree that was moved, and a program built with it runs.
#[test]
fn cmake_finds_a_tree_that_was_moved() {
    let moved = tempfile::tempdir().expect("a temporary folder");
    let tree = moved.path().join("opt");
    run(Command::new("cp").arg("-a").arg(installed()).arg(&tree));
    let project = moved.path().join("project");
    std::fs::create_dir(&project).expect("a folder");
    let lists = "cmake_minimum_required(VERSION 3.13)\nproject(user C)\n\
                 find_package(Muster 0.1 REQUIRED)\n\
                 foreach(kind muster static)\n\
                 add_executable(user-${kind} user.c)\n\
                 target_link_libraries(user-${kind} Muster::${kind})\n\
                 endforeach()\n";
    let program = "#include <muster.h>\n\
                   int main(void) { int minor = -1; muster_version(0, &minor, 0); \
                   return minor != MUSTER_VERSION_MINOR; }\n";
    std::fs::write(project.join("CMakeLists.txt"), lists).expect("written");
    std::fs::write(project.join("user.c"), program).expect("written");
    let build = project.join("build");
    run(Command::new("cmake")
        .arg("-S")
        .arg(&project)
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", tree.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for kind in ["muster", "static"] {
        run(&mut Command::new(build.join(format!("user-{kind}"))));
    }
}

#[test]
fn link_reports_what_is_missing() {
    let script = here().join("link.sh");
    let output = attempt(Command::new("sh").arg(&script));
    assert_eq!(output.status.code(), Some(2));
    let output = attempt(
        Command::new("sh")
            .arg(&script)
            .args(["/nowhere/libmuster_c.a", "/tmp"]),
    );
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cargo build"),
        "{output:?}"
    );
}
