//! `muster run`: the command line of the launcher.

mod arguments;
mod child;
pub mod emulate;
mod launchers;
mod output_reader;
mod remote;
mod shutdown;
mod stderr_reader;
mod step;

pub use arguments::{foreign, with_mpirun};

use crate::node::Control;
use crate::{
    Bind, Error, ExitPolicy, Hosts, Layout, OnLoss, Output, Plan, SlurmConf, Step, node, programs,
};
use clap::Args;
use muster_config::parse_rails;
use muster_fabric::Address;
use muster_terminal::{CliError, print_cli_error, print_error, warn_of_strange_settings};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Default time that ranks have to end after they were asked to.
const GRACE: Duration = Duration::from_secs(2);

/// `MUSTER_ZONES` of the agents unless the user sets it. Launchers exchange data of fences as attributes, and all
/// attributes of other zones together have the limit of one node.
const ONE_ZONE: &str = "off";

/// Options of `muster run`.
#[derive(Args)]
#[command(after_help = AFTER, allow_negative_numbers = true)]
pub struct RunArgs {
    /// Ranks of the job [default: one per node]; also -np.
    #[arg(short = 'n', long = "np", value_name = "RANKS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// Ranks of each node.
    #[arg(long = "ppn", value_name = "RANKS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    per_node: Option<u32>,
    /// Emulated nodes on this machine [default: those of the Slurm step, else 1].
    #[arg(long, value_name = "NODES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(emulate::NODES_MAX)))]
    nodes: Option<u32>,
    /// Rails (addresses) of each emulated node.
    #[arg(long, value_name = "RAILS", default_value_t = 1, requires = "nodes")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(emulate::RAILS_MAX)))]
    rails: u32,
    /// Hosts that are the nodes, as in n[1-4],x7; started over ssh.
    #[arg(long, value_name = "LIST", conflicts_with = "nodes")]
    hosts: Option<String>,
    /// Hosts from a file: a name or a list on each line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "hosts"])]
    hostfile: Option<PathBuf>,
    /// Run as the launcher of this host; another tool starts the others.
    #[arg(long)]
    here: bool,
    /// Remote shell command; host and command are appended.
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes")]
    ssh: String,
    /// Concurrent ssh starts.
    #[arg(long, value_name = "HOSTS", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    fanout: u32,
    /// A variable for the ranks; may be repeated. Other users see command lines.
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    export: Vec<String>,
    /// Bind each rank to its share of the cores: none or core.
    #[arg(long, value_name = "TO", default_value = "none", value_parser = parse_bind)]
    bind: Bind,
    /// Rule for the job's exit status: first, worst or survivors.
    #[arg(long, value_name = "POLICY", default_value = "survivors", value_parser = parse_policy)]
    exit_policy: ExitPolicy,
    /// Action on the loss of a rank or node: abort or continue.
    #[arg(long, value_name = "ACTION", value_parser = parse_on_loss)]
    on_loss: Option<OnLoss>,
    /// Startup timeout, of launchers and then of ranks.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86400))]
    start_timeout: u64,
    /// Time that ranks have to end [default: 2; in Slurm its KillWait].
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=86400))]
    grace: Option<u64>,
    /// Prefix each line of output with its rank.
    #[arg(long)]
    label: bool,
    /// Append each rank's output to a file; %r: rank, %h: node, %j: job.
    #[arg(long, value_name = "PATTERN", conflicts_with = "label")]
    output: Option<String>,
    /// Make the standard output of each rank a terminal.
    #[arg(long, conflicts_with = "output")]
    pty: bool,
    /// Print the job's name, libpmix, variables, fences and losses.
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments; several: -n 2 ./a : -n 6 ./b.
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn parse_bind(text: &str) -> Result<Bind, String> {
    text.parse()
}

fn parse_policy(text: &str) -> Result<ExitPolicy, String> {
    text.parse()
}

fn parse_on_loss(text: &str) -> Result<OnLoss, String> {
    text.parse()
}

/// The text below the options in the help.
const AFTER: &str = "\
Without --on-loss the job survives a loss if its MPI has fault tolerance or it uses no PMIx; else the loss ends it.
Only the first rank reads standard input.
muster-run(1) has the defaults for the ranks, losses, exit statuses, Slurm, other MPIs and limits.";

/// Runs the job and returns its exit status.
pub fn run(args: &RunArgs) -> ExitCode {
    match run_job(args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => print_cli_error(&error),
    }
}

/// The role of this process in the job.
enum Role {
    /// Starts the launchers of emulated nodes; the value is their number.
    EmulationParent(usize),
    /// Is the launcher of an emulated node: its index, the number of nodes, and the directory of the files.
    Emulated(usize, usize, PathBuf),
    /// Starts launchers on other hosts.
    Remote(Hosts),
    /// Is the launcher of a host, with a control channel from the process that started it.
    Host(Step),
    /// Is the launcher of a node of a Slurm step, or of a host.
    Step(Step),
}

impl Role {
    /// Whether this process prints the messages that are printed once per job, and prints them now.
    fn prints_job_messages(&self) -> bool {
        match self {
            Self::EmulationParent(_) | Self::Remote(_) => true,
            Self::Step(step) => step.own == 0 && std::env::var_os(step::VARIABLE).is_none(),
            Self::Emulated(..) | Self::Host(_) => false,
        }
    }
}

fn run_job(args: &RunArgs) -> Result<u8, CliError> {
    step::remove_plugin_variables(&arguments())?;
    let role = role(args)?;
    let numbered = |count: usize| (1..=count).map(|node| format!("n{node}")).collect();
    let nodes: Vec<String> = match &role {
        Role::EmulationParent(count) | Role::Emulated(_, count, _) => numbered(*count),
        Role::Remote(hosts) => hosts.names.clone(),
        Role::Step(step) | Role::Host(step) => step.nodes.clone(),
    };
    let job = match &role {
        Role::EmulationParent(_) => format!("run-{}", std::process::id()),
        Role::Emulated(..) => std::env::var("MUSTER_JOB").unwrap_or_default(),
        Role::Remote(_) => remote::new_job(),
        Role::Step(step) | Role::Host(step) => step.job.clone(),
    };
    let neighbours = match &role {
        Role::EmulationParent(count) | Role::Emulated(_, count, _) => *count,
        Role::Remote(_) | Role::Step(_) | Role::Host(_) => 1,
    };
    let usage = |why: String| CliError::usage("run", why);
    let mut programs = programs(&args.program, args.ranks).map_err(usage)?;
    let ranks = match programs[..] {
        [_] => args.ranks,
        _ => Some(programs.iter().map(|program| program.ranks).sum()),
    };
    let layout =
        Layout::new(nodes, ranks, args.per_node).map_err(|error| CliError::usage("run", error))?;
    if let [program] = &mut programs[..] {
        program.ranks = layout.ranks();
    }
    let is_emulated = matches!(role, Role::EmulationParent(_) | Role::Emulated(..));
    if is_emulated && layout.nodes().len() as u32 * args.rails > emulate::ADDRESSES_MAX {
        let (nodes, rails, most) = (layout.nodes().len(), args.rails, emulate::ADDRESSES_MAX);
        let why = format!("{nodes} nodes of {rails} rails; there are {most} addresses for rails");
        return Err(CliError::usage("run", why));
    }
    let output = Output {
        label: args.label,
        pty: args.pty,
        file: args.output.clone(),
    };
    output.check().map_err(usage)?;
    let export = exported(&args.export).map_err(usage)?;
    if role.prints_job_messages() {
        warn_of_strange_settings();
        if is_emulated {
            warn_of_rails();
        }
        warn_of_unset(&args.export);
        if args.verbose {
            print_job_name(&job, &role);
        }
    }
    let slurm = match &role {
        Role::Step(_) if !args.here => SlurmConf::here(),
        _ => None,
    };
    let plan = Plan {
        job,
        layout,
        programs,
        policy: args.exit_policy,
        on_loss: args.on_loss,
        export,
        output,
        timeout: Duration::from_secs(args.start_timeout),
        grace: match (args.grace, slurm) {
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, Some(slurm)) => slurm.kill_wait,
            (None, None) => GRACE,
        },
        slurm,
        bind: args.bind,
        neighbours,
        stdin: !matches!(role, Role::Host(_)),
        verbose: args.verbose,
    };
    let outcome = match role {
        Role::EmulationParent(_) => emulate::run(&plan, args.rails, &arguments()),
        Role::Emulated(own, _, files) => {
            return child::contain_panic(|| {
                let outcome = Control::new()
                    .and_then(|control| node::run(&plan, own, &files, &control, &mut || {}));
                let status = outcome.map(node::watched).map_err(failed);
                status.map_err(|error| emulate::reported_once(&files, error))
            });
        }
        Role::Remote(hosts) => {
            let how = (args.ssh.as_str(), args.fanout as usize);
            return remote::run(&plan, &hosts, how, &args.export, &arguments());
        }
        Role::Host(step) => return remote::serve(&plan, &step, &arguments()),
        Role::Step(step) => return step::run(&plan, &step, &arguments()),
    };
    outcome.map_err(failed)
}

fn role(args: &RunArgs) -> Result<Role, CliError> {
    if let Some((own, count, files)) = emulate::from_environment()? {
        return Ok(Role::Emulated(own, count, files));
    }
    if let Some(step) = remote::from_environment()? {
        return Ok(Role::Host(step));
    }
    if let Some(hosts) = hosts(args)? {
        return if args.here {
            here(&hosts)
        } else {
            Ok(Role::Remote(hosts))
        };
    }
    if args.here {
        let why = "--here requires the names of all hosts; give them with --hosts or --hostfile";
        return Err(CliError::usage("run", why));
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let several =
        |name: &str| variable(name).filter(|count| count.parse().is_ok_and(|n: u32| n > 1));
    if let Some(count) = args.nodes {
        if let Some(tasks) = several("SLURM_STEP_NUM_TASKS") {
            print_error(format_args!(
                "muster run: this step of Slurm has {tasks} tasks, and each starts a job with {count} emulated nodes; \
                 for one job on the step's nodes, omit --nodes"
            ));
        }
        return Ok(Role::EmulationParent(count as usize));
    }
    let step = Step::read(variable).map_err(|why| CliError::usage("run", why))?;
    if let (None, Some(nodes)) = (&step, several("SLURM_JOB_NUM_NODES")) {
        print_error(format_args!(
            "muster run: the Slurm job has {nodes} nodes, and muster run uses only this one; for all: \
             srun -N{nodes} --mpi=none --no-kill --kill-on-bad-exit=0 muster run ..."
        ));
    }
    Ok(step.map_or(Role::EmulationParent(1), Role::Step))
}

fn hosts(args: &RunArgs) -> Result<Option<Hosts>, CliError> {
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Hosts::parse(list),
        (None, Some(path)) => Hosts::read(path),
        (None, None) => return Ok(None),
    };
    hosts.map(Some).map_err(|why| CliError::usage("run", why))
}

/// The role of this host, one of those listed.
fn here(hosts: &Hosts) -> Result<Role, CliError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if variable("MUSTER_KEY_FILE").is_none() {
        let why = "--here requires a key that all hosts have: write openssl rand -hex 32 into a file of mode 0600, and \
                   set MUSTER_KEY_FILE to it";
        return Err(CliError::usage("run", why));
    }
    let Some(job) = variable("MUSTER_JOB") else {
        let why = "--here requires a name for the job, the same on all hosts and new for each run; set MUSTER_JOB";
        return Err(CliError::usage("run", why));
    };
    let own = match variable("MUSTER_NODE") {
        Some(name) => name,
        None => muster_sys::process::host_name()
            .map_err(|cause| CliError::new("run: this host's name", cause))?,
    };
    let index = hosts
        .place(&own)
        .map_err(|why| CliError::usage("run", why))?;
    Ok(Role::Step(hosts.step(index, &job)))
}

/// Variables whose value is in the command line. Other variables a launcher has in its environment, or gets over ssh.
fn exported(arguments: &[String]) -> Result<Vec<(OsString, OsString)>, String> {
    let mut given = Vec::new();
    for text in arguments {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text.as_str(), None),
        };
        if name.is_empty() {
            return Err(format!(
                "-x {text} does not name a variable; write -x NAME or -x NAME=VALUE"
            ));
        }
        given.extend(value.map(|value| (name.into(), value.into())));
    }
    Ok(given)
}

/// Prints the job's name, which selects its agents.
fn print_job_name(job: &str, role: &Role) {
    let how = match role {
        Role::EmulationParent(_) => {
            let directory = emulate::directory_of(std::process::id());
            format!("; muster members --agent {}", directory.display())
        }
        _ => String::new(),
    };
    let line = format!("muster run: the job is {job}{how}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Warns if MUSTER_RAILS is set: emulated nodes have their own addresses, so it has no effect. It may be invalid too.
fn warn_of_rails() {
    let Some(value) = std::env::var_os("MUSTER_RAILS").filter(|value| !value.is_empty()) else {
        return;
    };
    let text = value.to_string_lossy();
    let wrong = match parse_rails(&[text.clone().into_owned()]) {
        Err(error) => Some(error.to_string()),
        Ok(rails) => rails.iter().find_map(|rail| match &rail.address {
            Address::Interface(name) if !Path::new("/sys/class/net").join(name).exists() => Some(
                format!("rail {rail}: this node does not have an interface {name:?}"),
            ),
            _ => None,
        }),
    };
    let wrong = wrong.map_or(String::new(), |wrong| format!("{wrong}; "));
    print_error(format_args!(
        "muster run: MUSTER_RAILS={text}: {wrong}it has no effect on emulated nodes, which have loopback \
         addresses (--rails COUNT)"
    ));
}

/// Warns of -x NAME without a variable of that name, such as a misspelt name: the ranks do not get it.
fn warn_of_unset(arguments: &[String]) {
    let is_unset = |text: &&String| !text.contains('=') && std::env::var_os(text).is_none();
    for name in arguments.iter().filter(is_unset) {
        let line = format!(
            "muster run: -x {name}: it is not set here, so the ranks do not get it; set it, or write -x {name}=VALUE\n"
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// The arguments of this process, for a launcher that runs this program again.
fn arguments() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

fn failed(error: Error) -> CliError {
    let status = error.status();
    CliError::new("run", error).exit_code(status)
}
