//! Describes the machine of a measurement, and provides the directory of a measurement.
//!
//! Absolute values are meaningful only together with the machine and its load.

use muster_terminal::CliError;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// Processor, cores, kernel and load.
pub(super) fn describe() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, model)| model.trim());
    let load = read("/proc/loadavg");
    json!({
        "processor": model,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": load.split(' ').next().and_then(|word| word.parse::<f64>().ok()),
    })
}

/// The description as a line of text.
pub(super) fn text(machine: &Value) -> String {
    format!(
        "{}, {} cores, Linux {}, load before: {}",
        machine["processor"].as_str().unwrap_or("?"),
        machine["cores"],
        machine["kernel"].as_str().unwrap_or("?"),
        machine["load_before"]
    )
}

/// A directory for sockets, key and log, which is removed when this is dropped.
pub(super) struct Scratch(PathBuf);

/// Creates the directory.
pub(super) fn scratch() -> Result<Scratch, CliError> {
    let directory = std::env::temp_dir().join(format!("muster-bench-{}", std::process::id()));
    fs::create_dir(&directory)
        .map_err(|e| CliError::new(format!("bench: {}", directory.display()), e))?;
    Ok(Scratch(directory))
}

impl Scratch {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
