//! The origin of each setting of an agent: its option, its variable, its file, or the default.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use muster_config::Setting;

/// The meaning of an option that was not given and has no default of its own.
const UNSET: [(&str, &str); 14] = [
    ("group", "(none)"),
    (
        "rail",
        "every interface that is up, without bridges and tunnels",
    ),
    ("config", "(none)"),
    ("seed", "(none)"),
    ("hosts", "(none)"),
    (
        "port",
        "7741 or the next free one, or any free port where no rail is given",
    ),
    (
        "key-file",
        "from the clients, or the standing key of this user",
    ),
    ("journal", "(none: events are not written)"),
    ("readable-in", "(none: other users cannot query)"),
    (
        "participants",
        "(none: the first rails of the hosts, for age gossip)",
    ),
    ("local", "(none: groups have no effect)"),
    ("gossip-state", "(none: the state is not written)"),
    ("random-seed", "drawn"),
    ("job", "(none: in the foreground)"),
];
/// Options that describe how the process runs, not how the agent is configured.
const LEFT_OUT: [&str; 6] = [
    "help",
    "version",
    "print-events",
    "dir",
    "serve",
    "while-input",
];
/// Variables that are read without a corresponding option.
const VARIABLES: [(&str, &str, &str); 4] = [
    ("directory", "MUSTER_DIR", "/tmp/muster-UID"),
    ("libfabric", "MUSTER_LIBFABRIC", "the system's"),
    ("log", "MUSTER_LOG", "warn"),
    (
        "log-to",
        "MUSTER_LOG_TO",
        "standard error, or the job's log",
    ),
];

/// All settings, in the order of the command's options. `name` is the agent's.
pub(super) fn settings(command: &Command, matches: &ArgMatches, name: &str) -> Vec<Setting> {
    let mut settings = Vec::new();
    for option in command.get_arguments() {
        let Some(key) = option.get_long().filter(|key| !LEFT_OUT.contains(key)) else {
            continue;
        };
        let id = option.get_id().as_str();
        let source = matches.value_source(id);
        let origin = match (source, option.get_env()) {
            (Some(ValueSource::CommandLine), _) => format!("option --{key}"),
            (Some(ValueSource::EnvVariable), Some(variable)) => {
                format!("variable {}", variable.to_string_lossy())
            }
            _ => "default".to_owned(),
        };
        let given = matches.get_raw(id).map(|values| {
            let values = values.map(|value| value.to_string_lossy().into_owned());
            values.collect::<Vec<_>>().join(" ")
        });
        let unset = || {
            UNSET
                .iter()
                .find(|(unset, _)| *unset == key)
                .map(|(_, means)| *means)
        };
        let value = match given.filter(|value| !value.is_empty()) {
            Some(value) => value,
            None => unset().unwrap_or_default().to_owned(),
        };
        settings.push(Setting {
            key: key.to_owned(),
            value,
            origin,
        });
    }
    correct(&mut settings, name);
    settings
        .extend(VARIABLES.map(|(key, variable, default)| variable_setting(key, variable, default)));
    settings
}

/// A job's agent has its name from the job. Rails may come from the file.
fn correct(settings: &mut [Setting], name: &str) {
    let file = settings
        .iter()
        .find(|setting| setting.key == "config" && setting.origin != "default");
    let file = file.map(|setting| setting.value.clone());
    let is_job = settings
        .iter()
        .any(|setting| setting.key == "job" && setting.origin != "default");
    for setting in settings {
        match (setting.key.as_str(), &file) {
            ("name", _) if is_job => {
                (setting.value, setting.origin) =
                    (name.to_owned(), "the node's name in the job".to_owned());
            }
            ("name", _) if setting.origin == "default" => {
                (setting.value, setting.origin) = (name.to_owned(), "the host's name".to_owned());
            }
            ("rail", Some(file)) if setting.origin == "default" => {
                setting.value = "as in the file".to_owned();
                setting.origin = format!("file {file}");
            }
            _ => {}
        }
    }
}

fn variable_setting(key: &str, variable: &str, default: &str) -> Setting {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    let (value, origin) = match value {
        Some(value) => (
            value.to_string_lossy().into_owned(),
            format!("variable {variable}"),
        ),
        None => (default.to_owned(), "default".to_owned()),
    };
    Setting {
        key: key.to_owned(),
        value,
        origin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of the job is a secret, and must not be shown as a name.
    #[test]
    fn a_name_does_not_seem_to_come_from_the_secret_key() {
        let setting = |key: &str, value: &str, origin: &str| Setting {
            key: key.to_owned(),
            value: value.to_owned(),
            origin: origin.to_owned(),
        };
        let mut settings = [
            setting("name", "", "default"),
            setting("job", "1000:run-7:n1", "option --job"),
        ];
        correct(&mut settings, "n1");
        assert_eq!(settings[0].value, "n1");
        assert_eq!(settings[0].origin, "the node's name in the job");
    }
}
