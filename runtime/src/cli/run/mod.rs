//! `muster run`: the command line of the launcher.

mod arguments;
mod child;
pub(crate) mod emulate;
mod launchers;
mod output_reader;
mod remote;
mod shutdown;
mod stderr_reader;
mod step;

pub(crate) use arguments::{foreign, with_mpirun};

use super::{CliError, complain, print_error, warn_of_strange_settings};
use crate::config::parse_rails;
use crate::launch::{
    Bind, Error, ExitPolicy, Hosts, Layout, OnLoss, Output, Plan, SlurmConf, Step, node, programs,
};
use clap::Args;
use muster_fabric::Address;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// What ranks that are asked to end have where nobody says how long.
const GRACE: Duration = Duration::from_secs(2);

/// Options of `muster run`.
#[derive(Args)]
#[command(after_help = AFTER, allow_negative_numbers = true)]
pub(crate) struct RunArgs {
    /// Ranks of the job [default: one a node]; also -np.
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
    /// The same from a file: a name or a list on each line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "hosts"])]
    hostfile: Option<PathBuf>,
    /// Be the launcher of one of the hosts; another tool starts the others.
    #[arg(long)]
    here: bool,
    /// Remote shell command; host and command are appended.
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes")]
    ssh: String,
    /// Concurrent ssh starts.
    #[arg(long, value_name = "HOSTS", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    fanout: u32,
    /// A variable for the ranks; repeat it for more. Others see command lines.
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    export: Vec<String>,
    /// Bind each rank to its share of the cores: none or core.
    #[arg(long, value_name = "TO", default_value = "none", value_parser = parse_bind)]
    bind: Bind,
    /// Whose exit status is the job's: first, worst or survivors.
    #[arg(long, value_name = "POLICY", default_value = "survivors", value_parser = parse_policy)]
    exit_policy: ExitPolicy,
    /// What the loss of a rank or node does: abort or continue.
    #[arg(long, value_name = "ACTION", value_parser = parse_on_loss)]
    on_loss: Option<OnLoss>,
    /// Startup timeout, of launchers and then of ranks.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86400))]
    patience: u64,
    /// Time that ranks have to end [default: 2; in Slurm its KillWait].
    #[arg(long, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=86400))]
    grace: Option<u64>,
    /// Write each line of a rank with the rank before it.
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
    /// The program and its arguments; of several: -n 2 ./a : -n 6 ./b.
    #[arg(required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

fn parse_bind(word: &str) -> Result<Bind, String> {
    word.parse()
}

fn parse_policy(word: &str) -> Result<ExitPolicy, String> {
    word.parse()
}

fn parse_on_loss(word: &str) -> Result<OnLoss, String> {
    word.parse()
}

/// What the help has to say besides the options.
const AFTER: &str = "\
Without --on-loss a loss is survived where the ranks' MPI has fault tolerance or they use no PMIx; else it ends the job.
Only the first rank reads standard input.
muster-run(1) has the defaults for the ranks, losses, exit statuses, Slurm, other MPIs and limits.";

/// Runs the job; the exit status is the job's.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    match play(args) {
        Ok(status) => ExitCode::from(status),
        Err(error) => complain(&error),
    }
}

/// Where this process stands.
enum Place {
    /// It starts the launchers of emulated nodes.
    Starter(usize),
    /// It is the launcher of an emulated node: which, of how many, with files where.
    Emulated(usize, usize, PathBuf),
    /// It starts launchers on other hosts.
    Remote(Hosts),
    /// It is the launcher of a host that the process which started it speaks to.
    Host(Step),
    /// It is the launcher of a node of a Slurm step, or of a host.
    Step(Step),
}

impl Place {
    /// Whether of all processes of the job this one says what is to be said once, and says it now.
    fn speaks_first(&self) -> bool {
        match self {
            Self::Starter(_) | Self::Remote(_) => true,
            Self::Step(step) => step.own == 0 && std::env::var_os(step::VARIABLE).is_none(),
            Self::Emulated(..) | Self::Host(_) => false,
        }
    }
}

fn play(args: &RunArgs) -> Result<u8, CliError> {
    step::forget_the_plugin(&arguments())?;
    let place = place(args)?;
    let numbered = |count: usize| (1..=count).map(|node| format!("n{node}")).collect();
    let nodes: Vec<String> = match &place {
        Place::Starter(count) | Place::Emulated(_, count, _) => numbered(*count),
        Place::Remote(hosts) => hosts.names.clone(),
        Place::Step(step) | Place::Host(step) => step.nodes.clone(),
    };
    let job = match &place {
        Place::Starter(_) => format!("run-{}", std::process::id()),
        Place::Emulated(..) => std::env::var("MUSTER_JOB").unwrap_or_default(),
        Place::Remote(_) => remote::new_job(),
        Place::Step(step) | Place::Host(step) => step.job.clone(),
    };
    let neighbours = match &place {
        Place::Starter(count) | Place::Emulated(_, count, _) => *count,
        Place::Remote(_) | Place::Step(_) | Place::Host(_) => 1,
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
    let is_emulated = matches!(place, Place::Starter(_) | Place::Emulated(..));
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
    if place.speaks_first() {
        warn_of_strange_settings();
        if is_emulated {
            warn_of_rails();
        }
        warn_of_unset(&args.export);
        if args.verbose {
            name_the_job(&job, &place);
        }
    }
    let slurm = match &place {
        Place::Step(_) if !args.here => SlurmConf::here(),
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
        timeout: Duration::from_secs(args.patience),
        grace: match (args.grace, slurm) {
            (Some(seconds), _) => Duration::from_secs(seconds),
            (None, Some(slurm)) => slurm.kill_wait,
            (None, None) => GRACE,
        },
        slurm,
        bind: args.bind,
        neighbours,
        stdin: !matches!(place, Place::Host(_)),
        verbose: args.verbose,
    };
    let outcome = match place {
        Place::Starter(_) => emulate::run(&plan, args.rails, &arguments()),
        Place::Emulated(own, _, files) => {
            return child::survey(|| {
                let outcome = node::run(&plan, own, &files, &mut || {});
                outcome.map(node::watched).map_err(failed)
            });
        }
        Place::Remote(hosts) => {
            let how = (args.ssh.as_str(), args.fanout as usize);
            return remote::run(&plan, &hosts, how, &args.export, &arguments());
        }
        Place::Host(step) => return remote::serve(&plan, &step, &arguments()),
        Place::Step(step) => return step::run(&plan, &step, &arguments()),
    };
    outcome.map_err(failed)
}

fn place(args: &RunArgs) -> Result<Place, CliError> {
    if let Some((own, count, files)) = emulate::told()? {
        return Ok(Place::Emulated(own, count, files));
    }
    if let Some(step) = remote::told()? {
        return Ok(Place::Host(step));
    }
    if let Some(hosts) = hosts(args)? {
        return if args.here {
            here(&hosts)
        } else {
            Ok(Place::Remote(hosts))
        };
    }
    if args.here {
        let why = "--here needs the names of all hosts; give them by --hosts or --hostfile";
        return Err(CliError::usage("run", why));
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let several =
        |name: &str| variable(name).filter(|count| count.parse().is_ok_and(|n: u32| n > 1));
    if let Some(count) = args.nodes {
        if let Some(tasks) = several("SLURM_STEP_NUM_TASKS") {
            print_error(format_args!(
                "muster run: this step of Slurm has {tasks} tasks, and each starts a job with {count} emulated nodes \
                 of its own; for one job on the step's nodes leave out --nodes"
            ));
        }
        return Ok(Place::Starter(count as usize));
    }
    let step = Step::read(variable).map_err(|why| CliError::usage("run", why))?;
    if let (None, Some(nodes)) = (&step, several("SLURM_JOB_NUM_NODES")) {
        print_error(format_args!(
            "muster run: Slurm's job has {nodes} nodes, and this is one of them; for all: srun -N{nodes} --mpi=none \
             --no-kill --kill-on-bad-exit=0 muster run ..."
        ));
    }
    Ok(step.map_or(Place::Starter(1), Place::Step))
}

fn hosts(args: &RunArgs) -> Result<Option<Hosts>, CliError> {
    let hosts = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Hosts::parse(list),
        (None, Some(path)) => Hosts::read(path),
        (None, None) => return Ok(None),
    };
    hosts.map(Some).map_err(|why| CliError::usage("run", why))
}

/// The place of this host among them.
fn here(hosts: &Hosts) -> Result<Place, CliError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if variable("MUSTER_KEY_FILE").is_none() {
        let why = "--here needs a key that all hosts have: openssl rand -hex 32 into a file of mode 0600, and \
                   MUSTER_KEY_FILE to name it";
        return Err(CliError::usage("run", why));
    }
    let Some(job) = variable("MUSTER_JOB") else {
        let why = "--here needs a name for the job, the same on all hosts and new with each run; give it by MUSTER_JOB";
        return Err(CliError::usage("run", why));
    };
    let own = match variable("MUSTER_NODE") {
        Some(name) => name,
        None => crate::sys::process::host_name()
            .map_err(|cause| CliError::new("run: this host's name", cause))?,
    };
    let place = hosts
        .place(&own)
        .map_err(|why| CliError::usage("run", why))?;
    Ok(Place::Step(hosts.step(place, &job)))
}

/// Variables that have their value in the command line. Others a launcher has itself, or gets over ssh.
fn exported(arguments: &[String]) -> Result<Vec<(OsString, OsString)>, String> {
    let mut given = Vec::new();
    for word in arguments {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.as_str(), None),
        };
        if name.is_empty() {
            return Err(format!(
                "-x {word} names no variable; write -x NAME or -x NAME=VALUE"
            ));
        }
        given.extend(value.map(|value| (name.into(), value.into())));
    }
    Ok(given)
}

/// By that name its agents are asked.
fn name_the_job(job: &str, place: &Place) {
    let how = match place {
        Place::Starter(_) => {
            let directory = emulate::directory_of(std::process::id());
            format!("; muster members --agent {}", directory.display())
        }
        _ => String::new(),
    };
    let line = format!("muster run: the job is {job}{how}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Emulated nodes have addresses of their own: what is set is not used, and may be wrong where it is.
fn warn_of_rails() {
    let Some(value) = std::env::var_os("MUSTER_RAILS").filter(|value| !value.is_empty()) else {
        return;
    };
    let text = value.to_string_lossy();
    let wrong = match parse_rails(&[text.clone().into_owned()]) {
        Err(error) => Some(error.to_string()),
        Ok(rails) => rails.iter().find_map(|rail| match &rail.address {
            Address::Interface(name) if !Path::new("/sys/class/net").join(name).exists() => {
                Some(format!("rail {rail}: this node has no interface {name:?}"))
            }
            _ => None,
        }),
    };
    let wrong = wrong.map_or(String::new(), |wrong| format!("{wrong}; "));
    print_error(format_args!(
        "muster run: MUSTER_RAILS={text}: {wrong}it has no effect on emulated nodes, which have addresses \
         of their own on loopback (--rails COUNT)"
    ));
}

/// Ranks do not get what is not there, and a misspelt name is soon overlooked.
fn warn_of_unset(arguments: &[String]) {
    let is_unset = |word: &&String| !word.contains('=') && std::env::var_os(word).is_none();
    for name in arguments.iter().filter(is_unset) {
        let line = format!(
            "muster run: -x {name}: it is not set here, so the ranks do not get it; set it, or write -x {name}=VALUE\n"
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// This command line, for a launcher that is this program once more.
fn arguments() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

fn failed(error: Error) -> CliError {
    let status = error.status();
    CliError::new("run", error).exit_code(status)
}
