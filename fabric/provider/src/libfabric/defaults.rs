//! Settings of libfabric that an agent chooses itself. A variable that the user has set stays.
//!
//! libfabric has no calls for them: it reads the environment when its providers start.

use std::env;
use std::fs;

/// `ofi_rxm` makes a connection to each peer. By default it reserves the completions of 256 peers, 256 receives and
/// sends each, in one queue: more than some devices have (RoCE in software: 32,767), and the rail does not open. With
/// receives that all connections share, and few sends for each, the queue has 4,096 completions, and the buffers are
/// few (`fi_rxm(7)`).
const DEFAULTS: [(&str, &str); 2] = [
    ("FI_OFI_RXM_USE_SRX", "1"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "16"),
];

/// Sets what is not set. Does nothing if the process has several threads: another one may be reading the environment.
pub(super) fn set() {
    if !is_single_thread() {
        return;
    }
    for (name, value) in DEFAULTS {
        if env::var_os(name).is_none() {
            // SAFETY: this is the only thread, so no other one uses the environment.
            unsafe { env::set_var(name, value) };
        }
    }
}

fn is_single_thread() -> bool {
    let threads = fs::read_dir("/proc/self/task");
    threads.is_ok_and(|threads| threads.count() == 1)
}
