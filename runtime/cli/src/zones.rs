//! `muster zones` prints the zones of the job as an agent knows them; `muster zones plan` prints those that a job would
//! have, and asks no agent.

use super::answer::{align, array, print_answer, text};
use super::show::{ShowArgs, ask};
use clap::{Args, Subcommand};
use muster_config::{ZoneSourceError, ZoneSources, parse_topology};
use muster_control::{Question, Request};
use muster_hostlist::{expand, fold};
use muster_sys::file::read_text;
use muster_terminal::{CliError, Format};
use muster_zones::{Aim, Assignment, Directory, NODES_MAX, NodeIndex, ZoneId, ZoneMap};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes.
const FILE_MAX: usize = 64 << 20;
/// Zones of a level that the table shows without --all.
const SHOWN: usize = 20;

/// Options of `muster zones`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ZonesArgs {
    #[command(subcommand)]
    command: Option<ZonesCommand>,
    /// Show all zones, not the first 20 of each level.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    show: ShowArgs,
}

/// Subcommands of `muster zones`.
#[derive(Subcommand)]
pub(crate) enum ZonesCommand {
    /// Print the zones that a job would have, with the first choice for each role. No agent is asked.
    Plan(PlanArgs),
}

/// Options of `muster zones plan`.
#[derive(Args)]
pub(crate) struct PlanArgs {
    /// The nodes of the job, in its order: n[0001-4096].
    #[arg(long, value_name = "LIST", env = "SLURM_JOB_NODELIST")]
    nodes: String,
    /// Map file with lines such as row1/rack1: n[001-256]; - is standard input.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Zones by host names, as in (x*)(c*)s*n*: * is a number, parentheses name the zone.
    #[arg(long)]
    pattern: Option<String>,
    /// Switches: topology.conf, or - for the output of scontrol show topology on standard input.
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Make each leaf switch a zone, whatever its size.
    #[arg(long, requires = "topology")]
    each_switch: bool,
    /// Most nodes of a job that is one zone.
    #[arg(long, value_name = "NODES", default_value_t = Aim::default().one_zone_max as u32,
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    one_zone_max: u32,
    /// Nodes of a zone, about.
    #[arg(long, value_name = "NODES", default_value_t = Aim::default().zone as u32,
        value_parser = clap::value_parser!(u32).range(4..=2048))]
    zone_size: u32,
    /// Most zone supervisors that form a zone of a higher level.
    #[arg(long, value_name = "MEMBERS", default_value_t = Aim::default().above_max as u32,
        value_parser = clap::value_parser!(u32).range(8..=4096))]
    above_max: u32,
    /// Show all zones, not the first 20 of each level.
    #[arg(long)]
    all: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Runs `muster zones`.
pub(crate) fn run(args: &ZonesArgs) -> Result<(), CliError> {
    let Some(ZonesCommand::Plan(plan)) = &args.command else {
        let answer = ask(&args.show, &Request::Ask(Question::Zones))?;
        let shown = if args.all { usize::MAX } else { SHOWN };
        print_answer(args.show.output, &answer, |answer| {
            zones_table(answer, shown)
        });
        return Ok(());
    };
    let args = plan;
    let (map, source) = args.plan()?;
    match args.output {
        Format::Table => print!(
            "{}",
            table(&map, &source, if args.all { usize::MAX } else { SHOWN })
        ),
        Format::Json => println!("{:#}", document(&map, &source)),
    }
    Ok(())
}

/// A row for each zone, those that need attention first: at most `shown` of each level.
fn zones_table(answer: &Value, shown: usize) -> String {
    let number = |zone: &Value, key: &str| zone[key].as_u64().unwrap_or(0);
    let gone =
        |zone: &Value| number(zone, "failed") + number(zone, "left") + number(zone, "suspect");
    let levels = number(answer, "levels");
    let mut rows = vec![
        [
            "LEVEL",
            "ZONE",
            "NODES",
            "ALIVE",
            "DEGRADED",
            "FAILED",
            "LEFT",
            "UNKNOWN",
            "SUPERVISORS",
        ]
        .map(String::from),
    ];
    let mut hidden = Vec::new();
    for level in 0..levels {
        let zones = array(answer, "zones").iter();
        let mut zones: Vec<&Value> = zones
            .filter(|zone| number(zone, "level") == level)
            .collect();
        zones.sort_by_key(|zone| (zone["own"] != true, gone(zone) == 0));
        if zones.len() > shown {
            hidden.push(format!("{} of level {level}", zones.len() - shown));
        }
        for zone in zones.into_iter().take(shown) {
            let supervisors = array(zone, "supervisors").iter().filter_map(Value::as_str);
            let own = if zone["own"] == true { "*" } else { "" };
            rows.push([
                level.to_string(),
                format!("{}{own}", text(zone, "zone")),
                number(zone, "nodes").to_string(),
                number(zone, "alive").to_string(),
                number(zone, "degraded").to_string(),
                number(zone, "failed").to_string(),
                number(zone, "left").to_string(),
                (number(zone, "unknown") + number(zone, "suspect")).to_string(),
                fold(supervisors),
            ]);
        }
    }
    let mut table = align(&rows);
    if !hidden.is_empty() {
        let _ = writeln!(
            table,
            "\nNot shown: {}; --all shows them.",
            hidden.join(", ")
        );
    }
    let _ = writeln!(
        table,
        "\n*: the zones of {}. Supervisors are known to the members of the zone above.",
        text(answer, "self")
    );
    table
}

impl PlanArgs {
    fn plan(&self) -> Result<(ZoneMap, String), CliError> {
        let names = expand(&self.nodes, NODES_MAX)
            .map_err(|error| CliError::usage("zones: --nodes", error))?;
        let directory = Directory::new(names.iter().map(String::as_str));
        let directory = directory.map_err(|error| CliError::usage("zones: --nodes", error))?;
        let file = match &self.map {
            Some(path) => Some((name_of(path), read(path)?)),
            None => None,
        };
        let topology = match &self.topology {
            Some(path) => {
                let name = name_of(path);
                let topology = parse_topology(&name, &read(path)?).map_err(refused)?;
                Some((name, topology))
            }
            None => None,
        };
        let sources = ZoneSources {
            file,
            pattern: self.pattern.clone(),
            topology,
            each_switch: self.each_switch,
            aim: Aim {
                one_zone_max: self.one_zone_max as usize,
                zone: self.zone_size as usize,
                above_max: self.above_max as usize,
            },
        };
        sources.map(&directory).map_err(refused)
    }
}

fn name_of(path: &Path) -> String {
    match path == Path::new("-") {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

fn read(path: &Path) -> Result<String, CliError> {
    let path_read = match path == Path::new("-") {
        true => Path::new("/dev/stdin"),
        false => path,
    };
    read_text(path_read, FILE_MAX).map_err(|error| {
        CliError::new(format!("zones: {}", name_of(path)), error)
            .hint("name a readable file, or - for standard input")
    })
}

/// A source that is not valid: exit code 7, as for every configuration.
fn refused(error: ZoneSourceError) -> CliError {
    CliError::new("zones", error).exit_code(7)
}

fn table(map: &ZoneMap, source: &str, shown: usize) -> String {
    let roles = Assignment::of(map);
    let mut text = format!(
        "{} by {source}: {}\nDigest {:016x}\n\n",
        count(map.directory().len(), "node"),
        levels(map),
        map.digest()
    );
    let mut rows =
        vec![["LEVEL", "ZONE", "MEMBERS", "NODES", "SUPERVISORS", "GUARDS"].map(String::from)];
    let mut hidden = Vec::new();
    for level in 0..map.levels() {
        let zones = map.zones_at(level).count();
        for zone in map.zones_at(level).take(shown) {
            let roles = roles.zone(zone);
            rows.push([
                level.to_string(),
                map.path(zone).to_owned(),
                map.members(zone).to_string(),
                map.nodes_below(zone).to_string(),
                folded(map, &roles.supervisors),
                folded(map, &roles.guards),
            ]);
        }
        if zones > shown {
            hidden.push(format!("{} of level {level}", zones - shown));
        }
    }
    text.push_str(&align(&rows));
    if !hidden.is_empty() {
        let _ = writeln!(
            text,
            "\nNot shown: {}; --all shows them.",
            hidden.join(", ")
        );
    }
    for merged in map.merged() {
        let _ = writeln!(text, "Note: {merged}.");
    }
    text
}

/// The number of zones at each level and their sizes.
fn levels(map: &ZoneMap) -> String {
    let of = |level: usize| {
        let sizes = || map.zones_at(level).map(|zone| map.members(zone));
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        let size = match least == most {
            true => count(most, "member"),
            false => format!("{least} to {most} members"),
        };
        format!("{} of {size}", count(map.zones_at(level).count(), "zone"))
    };
    let levels: Vec<String> = (0..map.levels()).map(of).collect();
    levels.join(", above them ")
}

fn count(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn folded(map: &ZoneMap, nodes: &[NodeIndex]) -> String {
    let names = names(map, nodes);
    fold(names.iter().map(String::as_str))
}

fn names(map: &ZoneMap, nodes: &[NodeIndex]) -> Vec<String> {
    nodes
        .iter()
        .filter_map(|node| map.directory().name(*node))
        .collect()
}

fn document(map: &ZoneMap, source: &str) -> Value {
    let roles = Assignment::of(map);
    let zone = |zone: ZoneId| {
        let own = roles.zone(zone);
        json!({
            "level": zone.level,
            "zone": map.path(zone),
            "parent": map.parent(zone).map(|parent| map.path(parent)),
            "members": map.members(zone),
            "nodes": map.nodes_below(zone),
            "node_list": match zone.level {
                0 => Some(folded(map, map.nodes(zone))),
                _ => None,
            },
            "supervisors": names(map, &own.supervisors),
            "guards": names(map, &own.guards),
        })
    };
    let merged = |one: &muster_zones::Merged| json!({ "zone": one.zone, "into": one.into });
    json!({
        "schema": "muster/zones-plan/v1",
        "source": source,
        "nodes": map.directory().len(),
        "levels": map.levels(),
        "digest": format!("{:016x}", map.digest()),
        "zones": map.zones().map(zone).collect::<Vec<_>>(),
        "merged": map.merged().iter().map(merged).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(count: usize, zone: usize) -> ZoneMap {
        let names: Vec<String> = (1..=count).map(|n| format!("n{n}")).collect();
        let directory = Directory::new(names.iter().map(String::as_str)).unwrap();
        let aim = Aim {
            one_zone_max: zone,
            zone,
            ..Aim::default()
        };
        muster_zones::plan(directory, &[], aim).unwrap()
    }

    #[test]
    fn the_table_says_what_the_plan_comes_to() {
        let text = table(&map(8, 4), "the node list", SHOWN);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "8 nodes by the node list: 2 zones of 4 members, above them 1 zone of 4 members"
        );
        assert!(lines[1].starts_with("Digest "));
        assert!(
            lines[3].starts_with("LEVEL  ZONE  MEMBERS  NODES  SUPERVISORS"),
            "{text}"
        );
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(lines[4])[..4], ["0", "z1", "4", "4"]);
        assert_eq!(words(lines[6])[..4], ["1", "/", "4", "8"]);
        assert_eq!(words(lines[6])[4..], ["-", "-"]);
    }

    #[test]
    fn a_long_table_says_what_it_leaves_out() {
        let map = map(100, 4);
        let text = table(&map, "the node list", SHOWN);
        assert!(
            text.ends_with("Not shown: 5 of level 0; --all shows them.\n"),
            "{text}"
        );
        assert!(!table(&map, "the node list", usize::MAX).contains("Not shown"));
    }

    #[test]
    fn the_document_has_all_zones_and_their_nodes() {
        let document = document(&map(8, 4), "the node list");
        let zones = document["zones"].as_array().unwrap();
        assert_eq!(zones.len(), 3);
        assert_eq!(zones[0]["node_list"], "n[1-4]");
        assert_eq!(zones[0]["parent"], "/");
        assert_eq!(zones[2]["node_list"], Value::Null);
        assert_eq!(document["nodes"], 8);
    }
}
