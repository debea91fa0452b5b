//! Generates bindings for the types and constants of the installed PMIx headers that Muster uses.
//!
//! No library is linked: the process must hold only one libpmix, the one that MPI loaded, and that one is found at
//! run time. The headers provide layouts and numbers; 4.x and 5.x agree on all of those listed below.

use std::path::PathBuf;

const TYPES: &[&str] = &[
    "pmix_data_range_t",
    "pmix_dmodex_response_fn_t",
    "pmix_event_notification_cbfunc_fn_t",
    "pmix_hdlr_reg_cbfunc_t",
    "pmix_info_t",
    "pmix_modex_cbfunc_t",
    "pmix_notification_fn_t",
    "pmix_op_cbfunc_t",
    "pmix_proc_t",
    "pmix_release_cbfunc_t",
    "pmix_scope_t",
    "pmix_server_module_t",
    "pmix_status_t",
    "pmix_tool_connection_cbfunc_t",
    "pmix_value_cbfunc_t",
    "pmix_value_t",
];

const CONSTANTS: &[&str] = &[
    "PMIX_APPLDR",
    "PMIX_APPNUM",
    "PMIX_APP_INFO_ARRAY",
    "PMIX_APP_RANK",
    "PMIX_APP_SIZE",
    "PMIX_BOOL",
    "PMIX_BYTE_OBJECT",
    "PMIX_CPUSET",
    "PMIX_DATA_ARRAY",
    "PMIX_ERR_DUPLICATE_KEY",
    "PMIX_ERR_EXIT_NONZERO_TERM",
    "PMIX_ERR_INIT",
    "PMIX_ERR_NOT_FOUND",
    "PMIX_ERR_NOT_SUPPORTED",
    "PMIX_ERR_OUT_OF_RESOURCE",
    "PMIX_ERR_PARTIAL_SUCCESS",
    "PMIX_ERR_PROC_ABORTED",
    "PMIX_ERR_PROC_ABORTED_BY_SIG",
    "PMIX_ERR_PROC_TERM_WO_SYNC",
    "PMIX_ERR_TIMEOUT",
    "PMIX_ERR_UNREACH",
    "PMIX_EVENT_AFFECTED_PROC",
    "PMIX_EVENT_NON_DEFAULT",
    "PMIX_EVENT_NO_ACTION_TAKEN",
    "PMIX_EXTERNAL_ERR_BASE",
    "PMIX_GET_REFRESH_CACHE",
    "PMIX_GLOBAL",
    "PMIX_GLOBAL_RANK",
    "PMIX_GROUP_ASSIGN_CONTEXT_ID",
    "PMIX_GROUP_CONSTRUCT",
    "PMIX_GROUP_CONTEXT_ID",
    "PMIX_GROUP_ENDPT_DATA",
    "PMIX_GROUP_LOCAL_ONLY",
    "PMIX_GROUP_MEMBERSHIP",
    "PMIX_HOSTNAME",
    "PMIX_INFO",
    "PMIX_INT",
    "PMIX_JOBID",
    "PMIX_JOB_CTRL_KILL",
    "PMIX_JOB_CTRL_SIGNAL",
    "PMIX_JOB_CTRL_TERMINATE",
    "PMIX_JOB_NUM_APPS",
    "PMIX_JOB_SIZE",
    "PMIX_LOCALITY_STRING",
    "PMIX_LOCAL_PROCS",
    "PMIX_LOCAL_RANK",
    "PMIX_LOG_STDERR",
    "PMIX_LOG_STDOUT",
    "PMIX_MAX_KEYLEN",
    "PMIX_MAX_NSLEN",
    "PMIX_MAX_PROCS",
    "PMIX_NODEID",
    "PMIX_NODE_MAP",
    "PMIX_NODE_RANK",
    "PMIX_NSDIR",
    "PMIX_NSPACE",
    "PMIX_OPERATION_SUCCEEDED",
    "PMIX_OPTIONAL",
    "PMIX_PERSIST",
    "PMIX_PERSISTENCE",
    "PMIX_PERSIST_FIRST_READ",
    "PMIX_PROC",
    "PMIX_PROC_INFO_ARRAY",
    "PMIX_PROC_MAP",
    "PMIX_PROC_RANK",
    "PMIX_QUERY_NAMESPACES",
    "PMIX_QUERY_NUM_PSETS",
    "PMIX_QUERY_PSET_NAMES",
    "PMIX_RANGE_LOCAL",
    "PMIX_RANGE_PROC_LOCAL",
    "PMIX_RANK",
    "PMIX_REGEX",
    "PMIX_REINCARNATION",
    "PMIX_REQUIRED_KEY",
    "PMIX_SERVER_NSPACE",
    "PMIX_SERVER_RANK",
    "PMIX_SERVER_SHARE_TOPOLOGY",
    "PMIX_SERVER_TMPDIR",
    "PMIX_SIZE",
    "PMIX_STRING",
    "PMIX_SUCCESS",
    "PMIX_SYSTEM_TMPDIR",
    "PMIX_TIMEOUT",
    "PMIX_TMPDIR",
    "PMIX_UINT16",
    "PMIX_UINT32",
    "PMIX_UINT64",
    "PMIX_UNIV_SIZE",
    "PMIX_WAIT",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let library = pkg_config::Config::new()
        .atleast_version("4")
        .cargo_metadata(false)
        .probe("pmix")
        .unwrap_or_else(|error| {
            stop(&format!(
                "pkg-config finds no PMIx headers of version 4 or later ({error}).\n\
                 Install the package libpmix-dev (Debian, Ubuntu) or pmix-devel (Fedora, RHEL), \
                 or run `make setup`."
            ))
        });

    let mut builder = bindgen::Builder::default()
        .header_contents(
            "muster_pmix.h",
            "#include <pmix.h>\n#include <pmix_server.h>\n",
        )
        .clang_args(
            library
                .include_paths
                .iter()
                .map(|path| format!("-I{}", path.display())),
        )
        .use_core()
        .generate_cstr(true)
        .generate_comments(false)
        .derive_debug(false)
        .ignore_functions()
        .prepend_enum_name(false);
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in CONSTANTS {
        builder = builder.allowlist_var(name);
    }
    let bindings = builder.generate().unwrap_or_else(|error| {
        stop(&format!(
            "the PMIx headers at {:?} cannot be read ({error}).\n\
             bindgen needs libclang: install the package libclang-dev, or run `make setup`.",
            library.include_paths
        ))
    });
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("bindings.rs");
    if let Err(error) = bindings.write_to_file(&out) {
        stop(&format!("cannot write {}: {error}", out.display()));
    }
}

/// Ends the build with a message that names the remedy, not with a backtrace.
fn stop(message: &str) -> ! {
    eprintln!("pmix-sys: {message}");
    std::process::exit(1);
}
