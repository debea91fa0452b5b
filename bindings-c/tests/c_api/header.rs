//! muster.h: every supported C and C++ standard accepts it, and it agrees with the Rust code.

use crate::common::{bare, compiler, functions, header, here, run};

/// Uses the header as a program would, macros included.
const PROGRAM: &str = "#include <muster.h>\n\
    muster_config_t config = MUSTER_CONFIG_INIT;\n\
    muster_event_t event = MUSTER_EVENT_INIT;\n\
    #if !MUSTER_VERSION_AT_LEAST(0, 1, 0) || MUSTER_VERSION_AT_LEAST(99, 0, 0)\n\
    #error version\n\
    #endif\n\
    int use(void);\n\
    int use(void) { return muster_version(NULL, NULL, NULL) + (int)MUSTER_NONE + MUSTER_AUTO; }\n";

#[test]
fn strict_compilers_accept_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (variable, program, extension, standard) in [
        ("CC", "cc", "c", "-std=c99"),
        ("CC", "cc", "c", "-std=c11"),
        ("CXX", "g++", "cc", "-std=c++11"),
    ] {
        let source = folder.path().join(format!("use.{extension}"));
        std::fs::write(&source, PROGRAM).expect("written");
        run(compiler(variable, program)
            .args([
                standard,
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
                "-I",
            ])
            .arg(here().join("include"))
            .arg(&source));
    }
}

/// Uses muster_mpi.h as a program would.
const MPI_PROGRAM: &str = "#include <muster_mpi.h>\n\
    int use(void);\n\
    int use(void) {\n\
    muster_ctx_t *context = NULL;\n\
    MPI_Group group = MPI_GROUP_NULL;\n\
    int status = muster_mpi_init(MPI_COMM_WORLD, NULL, &context);\n\
    return status + muster_mpi_group(context, MPI_COMM_WORLD, 1u, &group)\n\
    + muster_mpi_failed(context, MPI_COMM_WORLD, &group); }\n";

/// The include directories of the MPI, from its compiler. As system headers they give no warnings.
fn mpi_headers() -> Vec<String> {
    let shown = run(std::process::Command::new("mpicc.openmpi").arg("--showme:incdirs"));
    let folders = shown.split_whitespace();
    folders
        .flat_map(|folder| ["-isystem".to_owned(), folder.to_owned()])
        .collect()
}

#[test]
fn strict_compilers_accept_what_is_compiled_with_a_program_of_mpi() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let headers = mpi_headers();
    for (variable, program, extension, standard) in [
        ("CC", "cc", "c", "-std=c99"),
        ("CC", "cc", "c", "-std=c11"),
        ("CXX", "g++", "cc", "-std=c++11"),
    ] {
        let source = folder.path().join(format!("use.{extension}"));
        std::fs::write(&source, MPI_PROGRAM).expect("written");
        run(compiler(variable, program)
            .args([standard, "-pedantic", "-Wall", "-Wextra", "-Wconversion"])
            .args(["-Wshadow", "-Werror", "-fsyntax-only"])
            // MPI's C++ bindings were removed from the standard; they would give warnings.
            .arg("-DOMPI_SKIP_MPICXX")
            .args(&headers)
            .arg("-I")
            .arg(here().join("include"))
            .arg(&source));
    }
}

/// The declarations that cbindgen generates from the Rust code.
fn generated() -> String {
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        documentation: false,
        usize_is_size_t: true,
        style: cbindgen::Style::Type,
        ..Default::default()
    };
    let mut text = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_src(here().join("src/lib.rs"))
        .generate()
        .expect("cbindgen reads the crate")
        .write(&mut text);
    String::from_utf8(text).expect("cbindgen writes UTF-8")
}

/// Normalises the spelling of pointers and of `(void)`.
fn spelled(declaration: &str) -> String {
    declaration
        .replace("* ", "*")
        .replace(" *", "*")
        .replace("()", "(void)")
}

#[test]
fn functions_are_those_of_the_code() {
    let from = |text: &str| -> Vec<String> {
        functions(text)
            .into_iter()
            .map(|(_, declaration)| spelled(&declaration))
            .collect()
    };
    let (written, read) = (from(&header()), from(&generated()));
    assert!(written.len() > 20, "{written:?}");
    assert_eq!(written, read, "muster.h (left) and the Rust code (right)");
}

/// The members of a struct in their order.
fn members(header: &str, name: &str) -> Vec<String> {
    let text = bare(header);
    let (before, _) = text
        .split_once(&format!("}} {name};"))
        .expect("the struct is there");
    let (_, body) = before.rsplit_once('{').expect("a struct has a body");
    body.split(';')
        .map(|member| spelled(member.trim()))
        .filter(|m| !m.is_empty())
        .collect()
}

#[test]
fn structs_are_those_of_the_code() {
    let read = generated();
    for name in ["muster_config_t", "muster_event_t"] {
        let written = members(&header(), name);
        assert!(
            written.len() >= 8 && written[0] == "size_t struct_size",
            "{written:?}"
        );
        assert_eq!(written, members(&read, name), "{name}");
    }
}

/// Every code has its number in the header, and the header has no other.
#[test]
fn error_codes_are_those_of_the_code() {
    let text = bare(&header());
    let mut written: Vec<(i32, String)> = text
        .split([',', '{', '}'])
        .filter_map(|part| part.trim().split_once(" = "))
        .filter(|(name, _)| name.starts_with("MUSTER_ERR_"))
        .map(|(name, number)| (number.parse().expect("a number"), name.to_owned()))
        .collect();
    written.sort();
    let mut listed: Vec<(i32, String)> = muster_c::CODES
        .iter()
        .map(|(number, name, _)| (*number, name.to_string_lossy().into_owned()))
        .collect();
    listed.sort();
    assert_eq!(written, listed);
}
