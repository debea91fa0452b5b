//! Finds `MUSTER_*` variables that nothing reads, and levels of the log that do not exist. A misspelt setting has no
//! effect, and the user must learn that.

use std::ffi::{OsStr, OsString};

use strsim::osa_distance;

/// The prefix of every name.
const PREFIX: &str = "MUSTER_";

/// The variables that a user may set. A test checks that the variables of all options and manual pages are included.
const KNOWN: [&str; 37] = [
    "AGENT",
    "ALLOW_FAST_INTERVAL",
    "CONFIG",
    "CONTROL",
    "DIR",
    "DRAIN",
    "DSCP",
    "GOSSIP_STATE",
    "GROUP",
    "HOSTS",
    "INTERVAL_MS",
    "JOB",
    "JOURNAL",
    "JOURNAL_KB",
    "KEY_FILE",
    "LIBFABRIC",
    "LIBPMIX",
    "LINGER_MS",
    "LOCAL",
    "LOG",
    "LOG_TO",
    "MINORITY",
    "NODE",
    "NODES",
    "PARTICIPANTS",
    "PMIX_EVENTS",
    "PMPI_STATS",
    "PORT",
    "PROFILE",
    "PROTOCOL",
    "RAILS",
    "RANK",
    "READABLE_IN",
    "ROUND_TRIP_MS",
    "SEEDS",
    "ULFM",
    "ZONES",
];
/// Variables that module files and package managers set for an installed package; they are not reported.
const OF_PACKAGES: [&str; 9] = [
    "BIN", "BASE", "HOME", "INC", "LIB", "PATH", "PREFIX", "ROOT", "VERSION",
];
/// Prefixes of variables that Muster's own parts and tests set for each other.
const INTERNAL: [&str; 5] = ["RUN_", "BENCH_", "SIM_", "TEST_", "SLURM_"];

/// The maximum number of names that are listed; further ones are counted.
const NAMED_MAX: usize = 8;
/// The maximum number of characters of a name or value that are shown.
const SHOWN_MAX: usize = 60;

/// Levels of the log.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The invalid settings in the environment of this process, one line for each.
pub fn strange_settings() -> Vec<String> {
    let log = std::env::var_os("MUSTER_LOG");
    let mut lines = unknown_settings(std::env::vars_os().map(|(name, _)| name));
    lines.extend(log.and_then(|value| check_log(&value).err()));
    lines
}

/// Reports the names that nothing reads, each with the nearest known one.
pub fn unknown_settings(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let is_read = |rest: &str| {
        KNOWN.contains(&rest)
            || OF_PACKAGES.contains(&rest)
            || INTERNAL.iter().any(|prefix| rest.starts_with(prefix))
    };
    let mut unknown: Vec<String> = names
        .filter_map(|name| Some(name.to_string_lossy().strip_prefix(PREFIX)?.to_owned()))
        .filter(|rest| !is_read(rest))
        .collect();
    unknown.sort();
    let more = unknown.len().saturating_sub(NAMED_MAX);
    unknown.truncate(NAMED_MAX);
    let mut lines: Vec<String> = unknown
        .iter()
        .map(|rest| {
            let remedy = match nearest(rest, &KNOWN) {
                Some(known) => format!("did you mean {PREFIX}{known}?"),
                None => "see ENVIRONMENT in muster(7)".to_owned(),
            };
            let name = shown(rest);
            format!("{PREFIX}{name} is no setting of Muster and has no effect; {remedy}")
        })
        .collect();
    if more > 0 {
        lines.push(format!(
            "{more} more {PREFIX} variables are no settings of Muster and have no effect; see ENVIRONMENT in \
             muster(7)"
        ));
    }
    lines
}

/// Checks that MUSTER_LOG is a level, or a list of levels and of TARGET=LEVEL.
///
/// # Errors
/// The invalid part, and the remedy.
pub fn check_log(value: &OsStr) -> Result<(), String> {
    let text = value.to_string_lossy();
    let is_level = |word: &str| {
        LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
            || matches!(word.as_bytes(), [b'0'..=b'5'])
    };
    for part in text.split(',').map(str::trim) {
        let word = match part.rsplit_once('=') {
            // A target with a field: the logging library's parser checks it.
            _ if part.contains('[') => continue,
            Some((_, level)) => level,
            None => part,
        };
        if !is_level(word) {
            let nearest = nearest(&word.to_ascii_lowercase(), &LEVELS);
            let nearest = nearest.map_or(String::new(), |level| format!("did you mean {level}? "));
            return Err(format!(
                "MUSTER_LOG has an invalid value: in {:?}, {:?} is no level; {nearest}set it to error, warn, info or \
                 debug; warn is used",
                shown(&text),
                shown(word)
            ));
        }
    }
    Ok(())
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect()
}

/// The known word with the fewest differences, if these are few.
fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if word.len() > SHOWN_MAX {
        return None;
    }
    let near = known
        .iter()
        .map(|one| (osa_distance(word, one), *one))
        .min()?;
    let (count, one) = near;
    let allowed = word.chars().count().max(one.len()).div_ceil(3);
    (count <= allowed).then_some(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report about the variable with this name, given without its prefix.
    fn report(rest: &str) -> String {
        let name = format!("MUSTER_{rest}");
        unknown_settings([OsString::from(&name)].into_iter()).concat()
    }

    #[test]
    fn a_misspelt_name_is_reported_with_the_nearest_one() {
        for (name, meant) in [
            ("PROFIL", "PROFILE"),
            ("RIALS", "RAILS"),
            ("RAIL", "RAILS"),
            ("LINGER", "LINGER_MS"),
            ("SEED", "SEEDS"),
            ("KEYFILE", "KEY_FILE"),
        ] {
            let report = report(name);
            let rest = format!("did you mean MUSTER_{meant}?");
            assert!(
                report.starts_with(&format!("MUSTER_{name} is no setting"))
                    && report.ends_with(&rest),
                "{report}"
            );
        }
        assert!(report("COLOUR_OF_THE_SKY").ends_with("see ENVIRONMENT in muster(7)"));
        for name in ["RAILS", "ROOT", "RUN_STEP"] {
            assert_eq!(report(name), "");
        }
        for name in ["MUSTARD_PROFIL", "PATH"] {
            assert_eq!(
                unknown_settings([OsString::from(name)].into_iter()).concat(),
                ""
            );
        }
    }

    #[test]
    fn many_names_make_few_lines() {
        let many = (0..100).map(|number| OsString::from(format!("{}X{number}", "MUSTER_")));
        let lines = unknown_settings(many);
        assert_eq!(lines.len(), NAMED_MAX + 1);
        assert!(lines[NAMED_MAX].starts_with("92 more"), "{lines:?}");
    }

    #[test]
    fn a_level_that_does_not_exist_is_named() {
        for value in [
            "info",
            "WARN",
            "muster=debug",
            "warn,muster_agent=trace",
            "3",
            "off",
        ] {
            assert_eq!(check_log(OsStr::new(value)), Ok(()), "{value}");
        }
        let report = check_log(OsStr::new("foo")).unwrap_err();
        assert!(
            report.contains("in \"foo\", \"foo\" is no level")
                && report.contains("error, warn, info or debug"),
            "{report}"
        );
        let report = check_log(OsStr::new("warn,muster=debgu")).unwrap_err();
        assert!(
            report.contains("\"debgu\" is no level; did you mean debug?"),
            "{report}"
        );
    }
}
