//! The setting `zones` of an agent: `auto`, `off`, a number of nodes, or a source of zones.

use std::path::Path;
use std::sync::Arc;

use muster_fabric::{Nid, NidList};
use muster_sys::file::read_text;
use muster_zones::{Aim, Directory, NODES_MAX, NodeIndex, ZONE_MEMBERS_MAX, ZoneMap, candidates};

use super::{ZoneSources, parse_topology};
use crate::ConfigError;
use crate::hosts::nids_of_names;

/// Longest file that is read, in bytes.
const FILE_MAX: usize = 64 << 20;
/// Nodes of each other zone, and of the own zone, whose addresses an agent looks up.
const OTHERS_MAX: usize = 4;
const OWN_MAX: usize = 64;
/// Most nodes in all whose addresses an agent looks up.
const LOOKED_UP_MAX: usize = 1024;

/// The zones of a job, as an agent takes them from its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobZones {
    /// The zones.
    pub map: Arc<ZoneMap>,
    /// The source that decided, for people.
    pub source: String,
}

/// The list of the job's nodes, and the setting that it is from.
#[derive(Clone, Copy, Debug)]
pub enum NodeList<'a> {
    /// The setting `nodes`.
    Nodes(&'a str),
    /// The setting `hosts`, which is the list where there is no setting `nodes`.
    Hosts(&'a str),
}

impl<'a> NodeList<'a> {
    /// The list of an agent with these settings, if there is one.
    #[must_use]
    pub fn of(nodes: Option<&'a str>, hosts: Option<&'a str>) -> Option<Self> {
        nodes.map(Self::Nodes).or(hosts.map(Self::Hosts))
    }

    /// The names of the list, in order. An error names the setting.
    fn directory(self) -> Result<Directory, ConfigError> {
        let (Self::Nodes(text) | Self::Hosts(text)) = self;
        let names = muster_hostlist::expand(text, NODES_MAX)
            .map_err(|error| format!("{error}; write them as in n[1-4],x7"));
        let directory = names.and_then(|names| {
            let names = names.iter().map(String::as_str);
            Directory::new(names).map_err(|error| error.to_string())
        });
        let text = text.to_owned();
        directory.map_err(|why| match self {
            Self::Nodes(_) => ConfigError::Nodes { text, why },
            Self::Hosts(_) => ConfigError::Hosts { text, why },
        })
    }
}

/// Reads the setting of zones of an agent that cannot have any, as age gossip: always `None`.
///
/// # Errors
/// A setting that asks for zones.
pub fn refuse_zones(setting: &str) -> Result<Option<JobZones>, ConfigError> {
    match setting {
        "auto" | "" | "off" => Ok(None),
        _ => Err(ConfigError::Zones {
            text: setting.to_owned(),
            why: "age gossip (--protocol age) has no zones; set --zones off, and give groups with the participants \
                  (GROUP=NIDS)"
                .to_owned(),
        }),
    }
}

/// The variable in which Slurm states the number of nodes of a step.
const STEP_NODES: &str = "SLURM_STEP_NUM_NODES";

/// How many nodes the Slurm step has that started this process, as its environment states; `None` if it states
/// none.
///
/// The daemons of another launcher may be a step of Slurm themselves, on more nodes than a job has: what they
/// start inherits the variables of that step. So they count only where Slurm is the launcher.
pub fn nodes_of_step(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let other_launcher = variable("PMIX_NAMESPACE").is_some_and(|name| !name.starts_with("slurm."));
    variable(STEP_NODES)
        .filter(|_| !other_launcher)
        .and_then(|count| count.parse().ok())
}

/// Reads the setting of zones. `nodes` is the list of the job's nodes, if it is known, `count` the number of nodes
/// as [`nodes_of_step`] returns it. `None`: the job is one zone.
///
/// # Errors
/// An unusable list of nodes, a setting that is not understood, a source that is not valid, a setting that needs the
/// list of nodes without it, or more nodes than one zone can have without a list to divide.
pub fn parse_zones(
    setting: &str,
    nodes: Option<NodeList<'_>>,
    count: Option<usize>,
) -> Result<Option<JobZones>, ConfigError> {
    let refused = |why: String| ConfigError::Zones {
        text: setting.to_owned(),
        why,
    };
    let directory = nodes.map(NodeList::directory).transpose()?;
    let is_automatic = matches!(setting, "auto" | "");
    if setting == "off" || (is_automatic && directory.is_none()) {
        if let (None, Some(count)) = (&directory, count.filter(|count| *count > ZONE_MEMBERS_MAX)) {
            let first = if is_automatic { "" } else { "use auto, and " };
            return Err(refused(format!(
                "the job has {count} nodes ({STEP_NODES}), too many for one zone, which has at most \
                 {ZONE_MEMBERS_MAX} members; {first}list the nodes with --nodes (MUSTER_NODES=$SLURM_STEP_NODELIST)"
            )));
        }
        return match directory.map_or(0, |directory| directory.len()) {
            0..=ZONE_MEMBERS_MAX => Ok(None),
            count => Err(refused(format!(
                "{count} nodes cannot be one zone: the most is {ZONE_MEMBERS_MAX}; use auto"
            ))),
        };
    }
    let Some(directory) = directory else {
        return Err(refused(
            "the nodes of the job are not known; list them with --nodes (MUSTER_NODES)".to_owned(),
        ));
    };
    let mut sources = ZoneSources::default();
    match setting.split_once(':') {
        None if is_automatic => {}
        None => {
            let size = setting.parse().ok();
            let size = size.filter(|size| (2..=ZONE_MEMBERS_MAX).contains(size));
            let Some(zone) = size else {
                return Err(refused(format!(
                    "it is none of auto, off, a number of nodes from 2 to {ZONE_MEMBERS_MAX}, file:PATH, \
                     pattern:PATTERN and topology:PATH"
                )));
            };
            sources.aim = Aim {
                one_zone_max: zone,
                zone,
                ..Aim::default()
            };
        }
        Some(("file", path)) => {
            sources.file = Some((path.to_owned(), read(path).map_err(refused)?));
        }
        Some(("pattern", pattern)) => sources.pattern = Some(pattern.to_owned()),
        Some(("topology", path)) => {
            let text = read(path).map_err(refused)?;
            let topology =
                parse_topology(path, &text).map_err(|error| refused(error.to_string()))?;
            sources.topology = Some((path.to_owned(), topology));
            sources.each_switch = true;
        }
        Some((kind, _)) => {
            return Err(refused(format!(
                "{kind:?} is not a source of zones; use file:PATH, pattern:PATTERN or topology:PATH"
            )));
        }
    }
    let (map, source) = sources
        .map(&directory)
        .map_err(|error| refused(error.to_string()))?;
    let map = Arc::new(map);
    Ok((map.levels() > 1).then_some(JobZones { map, source }))
}

fn read(path: &str) -> Result<String, String> {
    read_text(Path::new(path), FILE_MAX)
        .map_err(|error| format!("{path}: {error}; name a readable file"))
}

impl JobZones {
    /// The addresses of some hosts by their names, at the port and on the net of this rail: hosts of the zone of
    /// `own`, and of each other zone those that take part in the zones above while all nodes are alive.
    ///
    /// # Errors
    /// The first of these hosts without an address.
    pub fn hosts(
        &self,
        own: &str,
        rail: Option<&Nid>,
        port: u16,
    ) -> Result<Vec<(String, NidList)>, ConfigError> {
        let own = self.map.directory().find(own);
        let own = own.and_then(|node| self.map.base_zone(node));
        let mut nodes: Vec<NodeIndex> = Vec::new();
        if let Some(own) = own {
            nodes.extend(self.map.nodes(own).iter().take(OWN_MAX));
        }
        for zone in self.map.zones_at(0).filter(|zone| Some(*zone) != own) {
            if nodes.len() < LOOKED_UP_MAX {
                nodes.extend(candidates(&self.map, zone, OTHERS_MAX));
            }
        }
        let names = nodes
            .into_iter()
            .filter_map(|node| self.map.directory().name(node));
        nids_of_names(names.collect(), rail, port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(setting: &str, nodes: Option<&str>) -> String {
        match parse_zones(setting, nodes.map(NodeList::Nodes), None) {
            Ok(Some(zones)) => {
                let paths = zones
                    .map
                    .zones_at(0)
                    .map(|zone| zones.map.path(zone).to_owned());
                paths.collect::<Vec<_>>().join(" ")
            }
            Ok(None) => "one zone".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// A job that Slurm counts and nobody lists is refused where one zone cannot hold it.
    #[test]
    fn a_job_that_is_too_large_for_one_zone_needs_a_list() {
        let parse = |setting, nodes: Option<&'static str>, count| {
            parse_zones(setting, nodes.map(NodeList::Nodes), Some(count))
        };
        for setting in ["auto", "off"] {
            assert!(matches!(parse(setting, None, ZONE_MEMBERS_MAX), Ok(None)));
            let error = parse(setting, None, ZONE_MEMBERS_MAX + 1).unwrap_err();
            let text = error.to_string();
            for part in ["4097 nodes", "at most 4096", "MUSTER_NODES"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        // With a list, that counts.
        assert!(matches!(
            parse("auto", Some("n[1-5000]"), 5000),
            Ok(Some(_))
        ));
        assert!(matches!(parse("auto", Some("n[1-8]"), 5000), Ok(None)));
    }

    #[test]
    fn the_step_of_another_launchers_daemons_is_not_the_job() {
        let count = |namespace: Option<&str>, nodes: &str| {
            nodes_of_step(|name| match name {
                "PMIX_NAMESPACE" => namespace.map(str::to_owned),
                STEP_NODES => Some(nodes.to_owned()),
                _ => None,
            })
        };
        assert_eq!(count(None, "5000"), Some(5000));
        assert_eq!(count(Some("slurm.pmix.7.0"), "5000"), Some(5000));
        assert_eq!(count(Some("prterun-n1-77@1"), "5000"), None);
        assert_eq!(count(None, "many"), None);
        assert_eq!(nodes_of_step(|_| None), None);
    }

    #[test]
    fn small_jobs_are_one_zone_unless_zones_are_requested() {
        assert_eq!(text_of("auto", None), "one zone");
        assert_eq!(text_of("auto", Some("n[1-1024]")), "one zone");
        assert_eq!(text_of("auto", Some("n[1-1025]")), "z1 z2 z3 z4 z5");
        assert_eq!(text_of("off", Some("n[1-1025]")), "one zone");
        assert_eq!(text_of("4", Some("n[1-8]")), "z1 z2");
        assert_eq!(text_of("8", Some("n[1-8]")), "one zone");
        let racks = Some("r[1-2]n[1-2]");
        assert_eq!(text_of("pattern:(r*)n*", racks), "r1 r2");
    }

    #[test]
    fn a_setting_that_cannot_be_used_is_refused_with_a_remedy() {
        for (setting, nodes, part) in [
            ("4", None, "list them with --nodes"),
            ("1", Some("n[1-8]"), "a number of nodes from 2 to 4096"),
            ("many", Some("n[1-8]"), "none of auto, off"),
            ("switch:x", Some("n[1-8]"), "\"switch\" is not a source"),
            ("file:/none/there", Some("n[1-8]"), "name a readable file"),
            ("pattern:(r*)n*", Some("n[1-8]"), "node n1 does not fit it"),
            ("off", Some("n[1-5000]"), "use auto"),
        ] {
            let error = text_of(setting, nodes);
            assert!(error.contains(part), "{setting}: {error}");
            assert!(error.contains("MUSTER_ZONES"), "{setting}: {error}");
        }
    }

    /// The error is about the list, whatever zones are wanted.
    #[test]
    fn a_bad_list_of_nodes_is_refused_with_its_setting() {
        for (list, why) in [("n[1-", "n[1-"), ("n[1-3],n2", "n2")] {
            for setting in ["auto", "off", "4"] {
                let refused = |nodes| {
                    parse_zones(setting, Some(nodes), None)
                        .unwrap_err()
                        .to_string()
                };
                let errors = [
                    (
                        refused(NodeList::Nodes(list)),
                        "nodes",
                        "(--nodes, MUSTER_NODES)",
                    ),
                    (
                        refused(NodeList::Hosts(list)),
                        "hosts",
                        "(--hosts, MUSTER_HOSTS)",
                    ),
                ];
                for (error, kind, end) in errors {
                    let begin = format!("{kind} {list:?}: ");
                    assert!(error.starts_with(&begin) && error.ends_with(end), "{error}");
                    assert!(
                        error.contains(why) && !error.contains("MUSTER_ZONES"),
                        "{error}"
                    );
                }
            }
        }
    }

    #[test]
    fn addresses_are_those_of_the_own_zone_and_of_some_nodes_of_each_other() {
        let zones = parse_zones("8", Some(NodeList::Hosts("127.0.0.[1-64]")), None)
            .unwrap()
            .unwrap();
        let hosts = zones.hosts("127.0.0.9", None, 7100).unwrap();
        let own = hosts.iter().filter(|(name, _)| {
            let number: u32 = name.rsplit('.').next().unwrap().parse().unwrap();
            (9..17).contains(&number)
        });
        assert_eq!((own.count(), hosts.len()), (8, 8 + 7 * 4));
        assert!(hosts[0].1.to_string().ends_with(":7100@udp0"));
    }
}
