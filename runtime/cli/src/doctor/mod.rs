//! `muster doctor`: finds conditions that impair agents on this node, each with its remedy.
//!
//! `machine` checks the machine; `running` checks the agents that run here. The doctor changes nothing. It checks one
//! node; on a cluster run it on each: `srun --ntasks-per-node=1`.

mod machine;
mod running;

use super::agents::AgentArgs;
use super::answer::{Shape, array, counted, print_answer, text};
use clap::Args;
use muster_terminal::CliError;
use muster_terminal::paint;
use serde_json::{Value, json};

/// Options of `muster doctor`.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Time to listen for beats on each pair of a rail and a NID, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 2000,
        value_parser = clap::value_parser!(u64).range(100..=60_000))]
    listen: u64,
    #[command(flatten)]
    agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Shape,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Ok,
    Warning,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The result of one check.
#[derive(Debug)]
struct Finding {
    what: &'static str,
    level: Level,
    found: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self {
            what,
            level: Level::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    fn bad(
        what: &'static str,
        level: Level,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            what,
            level,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// Runs `muster doctor`. The exit code is 0, or 4 if a finding requires a repair.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), CliError> {
    let mut findings = machine::look();
    let (of_agents, matrix) = running::look(&args.agent, args.listen)?;
    findings.extend(of_agents);
    let worst = findings.iter().map(|finding| finding.level).max();
    let worst = worst.unwrap_or(Level::Ok);
    let answer = json!({
        "schema": "muster/doctor/v1",
        "verdict": worst.name(),
        "findings": findings.iter().map(describe).collect::<Vec<_>>(),
        "matrix": matrix,
    });
    let coloured = paint::is_coloured();
    print_answer(args.output, &answer, |answer| draw(answer, coloured));
    match worst {
        Level::Ok => Ok(()),
        _ => Err(CliError::silent(4)),
    }
}

fn describe(finding: &Finding) -> Value {
    json!({
        "what": finding.what,
        "level": finding.level.name(),
        "found": finding.found,
        "remedy": finding.remedy,
    })
}

fn draw(answer: &Value, coloured: bool) -> String {
    let mut lines = String::new();
    for finding in array(answer, "findings") {
        let level = text(finding, "level");
        let painted = paint::state(&format!("{level:<7}"), level, coloured);
        lines += &format!(
            "{painted}  {:<12}  {}\n",
            text(finding, "what"),
            text(finding, "found")
        );
        if let Some(remedy) = finding["remedy"].as_str() {
            lines += &format!("{:>23}remedy: {remedy}\n", "");
        }
    }
    let of = |level: &str| {
        let findings = array(answer, "findings").iter();
        findings
            .filter(|finding| text(finding, "level") == level)
            .count()
    };
    let (errors, warnings) = (of("error"), of("warning"));
    lines
        + &format!(
            "{}, {}\n",
            counted(errors, "error"),
            counted(warnings, "warning")
        )
}
