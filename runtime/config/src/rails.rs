//! The rails' configuration as a document: nets with their rails, peers, policy, limits.
//!
//! `import` reads the output of `export`, and a document that is exported, imported and exported again does not
//! change. Import checks everything before anything is used: unknown keys, invalid NIDs, a NID under another net,
//! a NID of two peers, contradictory rules. Every error has its line and column, and nothing is read then.

mod read;
mod write;

use muster_fabric::{HealthConfig, Net, Nid, NidList, NidPattern, Policy, Subject, Timeouts};

/// The version of the document.
const VERSION: u32 = 1;

/// A rail of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailEntry {
    /// Its NID. It names a local interface, so it may have an interface name.
    pub nid: Nid,
    /// The CPU partitions that it serves; empty means all.
    pub partitions: Vec<u32>,
}

/// The configuration of rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailsDocument {
    /// The rails, in order of preference within each net.
    pub rails: Vec<RailEntry>,
    /// The configured peers.
    pub peers: Vec<NidList>,
    /// Rails up to this NUMA distance count as near as the nearest.
    pub numa_range: u32,
    /// Reach members through relays if no direct pair works, and relay for other members.
    pub relay: bool,
    /// How errors and successes change the health.
    pub health: HealthConfig,
    /// Which rails, NIDs and pairs are preferred.
    pub policy: Policy,
    /// The time-outs of bulk messages.
    pub timeouts: Timeouts,
}

impl Default for RailsDocument {
    fn default() -> RailsDocument {
        RailsDocument {
            rails: Vec::new(),
            peers: Vec::new(),
            numa_range: 0,
            relay: true,
            health: HealthConfig::default(),
            policy: Policy::default(),
            timeouts: Timeouts::default(),
        }
    }
}

impl RailsDocument {
    /// The rail at whose port and on whose net the agents of other hosts are contacted: the first one on a net where
    /// the addresses of hosts lead to them, otherwise the first one.
    #[must_use]
    pub fn rail_of_hosts(&self) -> Option<&Nid> {
        let mut nids = self.rails.iter().map(|entry| &entry.nid);
        let leads = nids.clone().find(|nid| !nid.net.kind.has_names());
        leads.or_else(|| nids.next())
    }

    /// Groups rails by net, in the order in which the nets first appear, as they are written and read.
    pub fn group_by_net(&mut self) {
        let nets: Vec<Net> = self.rails.iter().map(|rail| rail.nid.net).collect();
        let first = |rail: &RailEntry| nets.iter().position(|net| *net == rail.nid.net);
        self.rails.sort_by_key(first);
    }

    /// A digest of what all nodes of a job should have alike: rules, relaying, and limits. None if these are the
    /// defaults.
    #[must_use]
    pub fn common_digest(&self) -> Option<String> {
        let common = RailsDocument {
            rails: Vec::new(),
            peers: Vec::new(),
            timeouts: Timeouts::default(),
            ..self.clone()
        };
        let digest = || blake3::hash(common.export().as_bytes()).to_hex()[..8].to_owned();
        (common != RailsDocument::default()).then(digest)
    }

    /// Checks that the document can be stored and read again, as the agent's next worker requires.
    pub fn check(&self) -> Result<(), String> {
        match Self::import(&self.export()) {
            Ok(read) if read == *self => Ok(()),
            Ok(_) => Err("it is not the same after it was written and read".into()),
            Err(error) => Err(error.reason),
        }
    }
}

/// The text of a switch.
pub fn switch_word(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// The possible subjects of a rule.
pub const SUBJECTS: &str = "a rule is about a net, about local, or about local and remote together";

/// The subject of a rule; none if there is no valid one.
#[must_use]
pub fn subject(
    net: Option<Net>,
    local: Vec<NidPattern>,
    remote: Vec<NidPattern>,
) -> Option<Subject> {
    match (net, local.is_empty(), remote.is_empty()) {
        (Some(net), true, true) => Some(Subject::Net(net)),
        (None, false, true) => Some(Subject::Local(local)),
        (None, false, false) => Some(Subject::Pairs { local, remote }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_fabric::{NIDS_MAX, Rule};
    use proptest::prelude::*;

    const WHOLE: &str = r#"version: 1
nets:
  - net: udp0
    rails:
      - nid: 10.0.0.1@udp0
        partitions: [0, 1]
      - nid: "eth-1:0@udp0"
  - net: tcp1
    rails:
      - nid: 10.1.0.1:99@tcp1
peers:
  - nids: [10.0.0.2@udp0, 10.1.0.2@tcp1]
  - nids: [10.0.0.3@udp0]
numa_range: 21
relay: off
health:
  sensitivity: 100
  recovery: 50
  shun_below: 500
  pause_min_us: 1000
  pause_max_us: 2000
policy:
  - net: o2ib0
    priority: 0
  - local: ["eth[0-1]@udp0"]
    priority: 3
    messages: 7
  - local: ["*@udp0"]
    remote: ["10.0.[1-3].*@udp0", 10.9.9.9@udp0]
    priority: 255
timeouts:
  transport_us: 50000
  retry_us: 7000000
  reply_us: 10000000
  upper_us: 20000000
  retries_max: 3
"#;

    /// muster-config(5) explains every key of a document with its default, and its example is a valid
    /// document.
    #[test]
    fn the_manual_page_has_every_key_and_its_default() {
        let page = include_str!("../../../docs/man/muster-config.5");
        let places = [
            "",
            "nets:\n  - ",
            "nets:\n  - net: udp0\n    rails:\n      - ",
            "peers:\n  - ",
            "health:\n  ",
            "policy:\n  - ",
            "timeouts:\n  ",
        ];
        let defaults = RailsDocument::default().export();
        let mut explained = 0;
        for place in places {
            let error = RailsDocument::import(&format!("{place}no_key: 1")).unwrap_err();
            let (_, known) = error
                .reason
                .split_once("known are ")
                .expect("the known keys");
            for key in known.split(", ") {
                let item = page.split_once(&format!(".It Li {key}\n"));
                let (_, item) = item.unwrap_or_else(|| panic!("the page lacks {key}"));
                let item = item.split(".It Li ").next().unwrap_or_default();
                let lines = defaults.lines().map(str::trim);
                let number = lines.filter_map(|line| line.split_once(": "));
                for (_, number) in number.filter(|(name, _)| *name == key && *name != "version") {
                    let text = item.replace('\n', " ");
                    let is_there = number.starts_with('[')
                        || text.contains(&format!("default {number}"))
                        || text.contains(&format!("default .Li {number}"));
                    assert!(is_there, "{key}: {number} in {item}");
                }
                explained += 1;
            }
        }
        assert!(explained >= 25, "{explained} keys");
        let (_, example) = page.split_once("-offset indent\n").expect("an example");
        let example = example.split(".Ed").next().unwrap_or_default();
        let document = RailsDocument::import(example).expect("the example is a document");
        assert_eq!(document.rails.len(), 2);
    }

    /// cfg-045, cfg-050, cfg-055, cfg-170: export, import, export.
    #[test]
    fn a_document_is_exported_as_it_was_imported() {
        let document = RailsDocument::import(WHOLE).unwrap();
        assert_eq!(document.export(), WHOLE);
        assert_eq!((document.rails.len(), document.peers.len()), (3, 2));
        let plain = RailsDocument::default();
        assert_eq!(RailsDocument::import(&plain.export()), Ok(plain));
        assert_eq!(
            RailsDocument::import("version: 1"),
            Ok(RailsDocument::default())
        );
    }

    /// cfg-065, cfg-070, cfg-165.
    #[test]
    fn an_invalid_document_is_refused_with_line_and_column() {
        let refusal = |from: &str, to: &str| {
            assert!(WHOLE.contains(from), "{from}");
            RailsDocument::import(&WHOLE.replacen(from, to, 1))
                .unwrap_err()
                .to_string()
        };
        for (from, to, expected) in [
            (
                "numa_range",
                "numa_rage",
                "line 14, column 1: the key \"numa_rage\" is not known here; known are version",
            ),
            (
                "partitions",
                "cpts",
                "line 6, column 9: the key \"cpts\" is not known here",
            ),
            (
                "    messages",
                "    mesages",
                "line 27, column 5: the key \"mesages\"",
            ),
            (
                "version: 1",
                "version: 2",
                "line 1, column 1: version 2 is not supported",
            ),
            (
                "version: 1\n",
                "",
                "line 1, column 1: the key version is missing",
            ),
            (
                "10.0.0.1@udp0",
                "10.0.0.1@tcp1",
                "line 5, column 9: 10.0.0.1@tcp1 is listed under the net udp0",
            ),
            (
                "10.0.0.3@udp0",
                "10.1.0.2@tcp1",
                "line 13, column 12: 10.1.0.2@tcp1 belongs to the peer in line 12",
            ),
            (
                "10.0.0.3@udp0",
                "eth0@udp0",
                "line 13, column 12: eth0@udp0 names an interface",
            ),
            (
                "10.0.0.3@udp0",
                "10.0.0.3",
                "line 13, column 12: \"10.0.0.3\" is no NID",
            ),
            (
                "net: udp0",
                "net: ether",
                "line 3, column 10: \"ether\" is no net",
            ),
            (
                "relay: off",
                "relay: maybe",
                "line 15, column 8: \"maybe\" is neither on nor off",
            ),
            (
                "priority: 255",
                "priority: 256",
                "line 30, column 15: \"256\" is not a number",
            ),
            (
                "recovery: 50",
                "recovery: 0",
                "line 17, column 3: health recovery 0",
            ),
            (
                "retry_us: 7000000",
                "retry_us: 10000000",
                "line 32, column 3: the retry time-out, 10000000 us, is not shorter than the reply",
            ),
            (
                "  upper_us",
                "  lower_us",
                "line 35, column 3: the key \"lower_us\"",
            ),
            (
                "messages: 7",
                "messages: 0",
                "line 23, column 3: the rule about",
            ),
            (
                "  - net: o2ib0",
                "  - remote: [10.9.9.9@udp0]",
                "line 23, column 5: a rule is about",
            ),
            (
                "\"eth[0-1]@udp0\"",
                "\"eth[1-0]@udp0\"",
                "line 25, column 13: ",
            ),
            (
                "eth-1:0@udp0",
                "10.0.0.1@udp0",
                "line 7, column 9: 10.0.0.1@udp0 is listed twice",
            ),
        ] {
            let error = refusal(from, to);
            assert!(error.starts_with(expected), "{to}: {error}");
        }
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let patterns = || {
            let pattern = prop_oneof![
                "[a-z]{1,5}[0-9]@udp[0-9]",
                "10\\.[0-9]\\.\\[1-9\\]\\.\\*@tcp",
                "\\*@o2ib[0-9]"
            ];
            let parse =
                |texts: Vec<String>| texts.iter().map(|text| text.parse().unwrap()).collect();
            proptest::collection::vec(pattern, 1..4).prop_map(parse)
        };
        let subject = prop_oneof![
            (0..99u16).prop_map(|number| Subject::Net(format!("udp{number}").parse().unwrap())),
            patterns().prop_map(Subject::Local),
            (patterns(), patterns()).prop_map(|(local, remote)| Subject::Pairs { local, remote }),
        ];
        (subject, any::<u8>(), proptest::option::of(1..1000u32)).prop_map(
            |(subject, priority, messages)| Rule {
                subject,
                priority,
                messages,
            },
        )
    }

    fn any_document() -> impl Strategy<Value = RailsDocument> {
        let rails = proptest::collection::vec(
            (0..3u8, proptest::collection::vec(0..64u32, 0..3)),
            0..NIDS_MAX,
        );
        let peers = proptest::collection::vec(1..4u8, 0..20);
        let rules = proptest::collection::vec(any_rule(), 0..5);
        (rails, peers, rules, any::<u32>(), 0..=1000u16).prop_map(
            |(rails, peers, rules, numa_range, sensitivity)| {
                let nid = |text: String| text.parse::<Nid>().unwrap();
                // Grouped by net, as in a document.
                let mut rails: Vec<RailEntry> = (0..)
                    .zip(rails)
                    .map(|(host, (net, partitions)): (u8, _)| RailEntry {
                        nid: nid(format!("10.0.0.{host}@udp{net}")),
                        partitions,
                    })
                    .collect();
                rails.sort_by_key(|rail| rail.nid.net);
                let peer = |(host, count): (usize, u8)| {
                    let nids = (0..count)
                        .map(|net| nid(format!("10.1.{}.{}@udp{net}", host / 200, host % 200)));
                    NidList::new(nids.collect()).unwrap()
                };
                RailsDocument {
                    rails,
                    peers: peers.into_iter().enumerate().map(peer).collect(),
                    numa_range,
                    relay: numa_range % 2 == 0,
                    health: HealthConfig {
                        sensitivity,
                        ..HealthConfig::default()
                    },
                    policy: Policy::new(rules).unwrap_or_default(),
                    timeouts: Timeouts {
                        upper_us: (sensitivity > 500).then_some(20_000_000),
                        retries_max: 1 + u32::from(sensitivity),
                        ..Timeouts::default()
                    },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn every_document_survives_the_round_trip(document in any_document()) {
            let text = document.export();
            let read = RailsDocument::import(&text);
            prop_assert_eq!(read.as_ref(), Ok(&document), "{}", text);
            prop_assert_eq!(read.unwrap().export(), text);
        }

        #[test]
        fn a_document_with_one_changed_character_is_read_or_refused(at in 0..WHOLE.len(), character in "[ -~\n]") {
            let mut text = WHOLE.to_owned();
            text.replace_range(at..=at, &character);
            if let Err(error) = RailsDocument::import(&text) {
                prop_assert!(error.line >= 1 && error.line <= WHOLE.lines().count() + 1, "{error}");
            }
        }
    }

    #[test]
    fn hosts_are_contacted_on_a_net_where_their_addresses_lead_to_them() {
        let document = |nids: &[&str]| RailsDocument {
            rails: nids
                .iter()
                .map(|nid| RailEntry {
                    nid: nid.parse().unwrap(),
                    partitions: Vec::new(),
                })
                .collect(),
            ..RailsDocument::default()
        };
        for (rails, expected) in [
            (
                &["hsn0@cxi0", "eth0@udp1", "eth1@udp2"][..],
                Some("eth0@udp1"),
            ),
            (&["hsn0@cxi0", "hsn1@cxi0"], Some("hsn0@cxi0")),
            (&[], None),
        ] {
            let document = document(rails);
            let rail = document.rail_of_hosts().map(ToString::to_string);
            assert_eq!(rail.as_deref(), expected);
        }
    }

    /// In a document and by a change, as of the command line, the reason names what to use instead.
    #[test]
    fn agents_have_no_psm_rails() {
        let document = "version: 1\nnets:\n  - net: psm0\n    rails:\n      - nid: 10.0.0.1@psm0\n";
        let refused = RailsDocument::import(document).unwrap_err().to_string();
        let reason = "10.0.0.1@psm0: agents have no psm rails, since a send to a lost node blocks for up to 10 s and \
                      then ends the process; use udp, tcp or o2ib on the same adapter";
        assert_eq!(refused, format!("line 5, column 9: {reason}"));
        let mut document = RailsDocument::default();
        document.rails.push(RailEntry {
            nid: "10.0.0.1@psm0".parse().unwrap(),
            partitions: Vec::new(),
        });
        assert_eq!(document.check(), Err(reason.to_owned()));
    }

    /// cfg-040: rails of different device types may have the same address; two rails of one interface may not, with any
    /// ports.
    #[test]
    fn an_address_has_one_rail_for_each_kind_of_device() {
        let text = |net: &str| {
            format!(
                "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 10.0.0.1@udp0\n  \
                 - net: {net}\n    rails:\n      - nid: 10.0.0.1:8000@{net}\n"
            )
        };
        for other in ["shm0", "o2ib0"] {
            let both = RailsDocument::import(&text(other)).unwrap();
            assert_eq!(both.rails.len(), 2, "{other}");
        }
        let refused = RailsDocument::import(&text("udp1")).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "line 8, column 9: 10.0.0.1:8000@udp1 is the same interface as 10.0.0.1@udp0; name each interface once"
        );
    }
}
