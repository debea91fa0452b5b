//! `muster run`: the command line of the launcher.

mod child;
pub(crate) mod emulate;
mod remote;
mod step;

use super::{CliError, complain};
use crate::launch::{Bind, Error, ExitPolicy, Hosts, Layout, Output, Plan, Step, node, programs};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `muster run`.
#[derive(Args)]
#[command(after_long_help = AFTER)]
pub(crate) struct RunArgs {
    /// How many ranks the job has [default: one a node].
    #[arg(short = 'n', long = "np", value_name = "RANKS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// How many ranks each node has.
    #[arg(long = "ppn", value_name = "RANKS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    per_node: Option<u32>,
    /// How many nodes are emulated on this machine, each with a launcher and an agent of its own
    /// [default: the nodes of the step that srun started this in, else one].
    #[arg(long, value_name = "NODES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(emulate::NODES_MOST)))]
    nodes: Option<u32>,
    /// How many rails (addresses of its own) each emulated node has.
    #[arg(long, value_name = "RAILS", default_value_t = 1, requires = "nodes")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(emulate::RAILS_MOST)))]
    rails: u32,
    /// The hosts that are the nodes, as in n[1-4],x7; a launcher is started on each over ssh, or see --here.
    #[arg(long, value_name = "LIST", conflicts_with = "nodes")]
    hosts: Option<String>,
    /// The same from a file: a name or a list on each line; # begins a remark.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "hosts"])]
    hostfile: Option<PathBuf>,
    /// This is the launcher of one of the hosts: whoever started it has started one on each of the others.
    /// The job's key is in MUSTER_KEY_FILE, its name in MUSTER_JOB: the same on every host, the name new with each run.
    #[arg(long)]
    here: bool,
    /// How a command is run on a host: these words, the host, the command.
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes")]
    ssh: String,
    /// A variable for the ranks. Without =VALUE it is as it is here: ranks on other hosts get no others than these and
    /// PATH, LD_LIBRARY_PATH, PYTHONPATH, OPAL_PREFIX, OMPI_MCA_* and MUSTER_*. May be given several times.
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    export: Vec<String>,
    /// Bind each rank to its share of the cores that the launcher may use.
    #[arg(long, value_name = "none|core", default_value = "none", value_parser = parse_bind)]
    bind: Bind,
    /// Whose exit status is the job's.
    #[arg(long, value_name = "first|worst|survivors", default_value = "survivors", value_parser = parse_policy)]
    exit_policy: ExitPolicy,
    /// How many seconds the launchers of all nodes, and then their ranks, may take to come; and how long a rank waits
    /// for what another has not put and no fence brings (PMIx_Get), if it sets no limit itself.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86400))]
    patience: u64,
    /// Write each line of a rank with the rank before it.
    #[arg(long)]
    label: bool,
    /// Write what a rank says into a file, at its end if it is there; %r is the rank, %h the node, %j the job.
    #[arg(long, value_name = "PATTERN", conflicts_with = "label")]
    output: Option<String>,
    /// Say what is done: libpmix, variables, fences, deaths.
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments; of several, each with its ranks: -n 2 ./a : -n 6 ./b.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn parse_bind(word: &str) -> Result<Bind, String> {
    word.parse()
}

fn parse_policy(word: &str) -> Result<ExitPolicy, String> {
    word.parse()
}

/// What a page has to say besides the options.
const AFTER: &str = "\
Each node has a launcher, which starts the node's ranks, is their PMIx server and tells their MPI of \
every rank and node that Muster knows to be dead. The program needs nothing of Muster: with Open MPI 5 \
and ULFM it can revoke, shrink and go on to MPI_Finalize.

Defaults for the ranks, each kept as it is if it is set already: OMPI_MCA_coll=^han (coll/han crashes \
when a rank dies), OMPI_MCA_mpi_ft_enable=1, OMPI_MCA_mpi_yield_when_idle=1 where a node has more ranks \
than cores, OMPI_MCA_btl_sm_backing_directory and _vader_ (removed at the end), OPAL_PREFIX where Open \
MPI was moved. SIGPIPE is ignored. libpmix is that of the MPI which the program links, or MUSTER_LIBPMIX.

A rank that is lost before the end of MPI_Init is a failed launch. A rank that ends without MPI_Finalize \
is dead to the others, whatever its status. MPI_Abort ends the job on every node, with the status that \
was asked for. SIGUSR1 and SIGUSR2 go to the ranks and what these have started; SIGINT, SIGTERM \
and SIGHUP end the job, at the latest \
after two seconds. A node that the others have given up kills its ranks. Of standard input the first rank \
reads.

The exit status is 127 if the program cannot be started, 5 if a node does not come; else the policy's: \
survivors (of ranks that were not lost in MPI, or of the lost ones if nobody survived), worst, or first. With --hosts \
a status of 255, which is ssh's own for its failures, becomes 254.

With OMPI_MCA_pmix_base_async_modex=1 ranks of a node that use shared memory hang in Open MPI 5.0.11, under its own \
mpirun as well; leave it out, or add OMPI_MCA_btl=tcp,self.

Other MPIs: Debian's Open MPI 4.1 starts and runs, without fault tolerance. MPICH as it comes from PyPI \
has no PMIx, says so, and is not started.

In a step of Slurm the nodes are the step's: srun -N4 --mpi=none --no-kill --kill-on-bad-exit=0 muster run \
-n 8 -- ./app starts one launcher a node. The job's key is a file of mode 0600 in HOME until all launchers have it; \
where HOME is not shared, name a key on every node with MUSTER_KEY_FILE. Lost ranks and nodes are survived there, \
too; without --no-kill and --kill-on-bad-exit=0 Slurm ends the step instead. \
The job is called JOB.STEP, or MUSTER_JOB, which is to be new with each run: two in one interactive step need names \
of their own. \
After the loss of a node srun stays until Slurm has missed it (SlurmdTimeout), whatever the ranks have done.

Anywhere else --hosts or --hostfile name the nodes. muster run --hosts n[1-4] -n 8 -- ./app starts a launcher on each \
over ssh (which must not ask for anything) in this working directory, hands the job's key over by standard input and \
passes signals on; the launchers end if it does, and the ranks have no standard input. A host whose connection breaks \
is lost, like one that dies; one that is not reached ends the start. ssh's own words say why. With --here it starts \
nothing: whoever started it (parallel, pdsh, another scheduler) has started the same command on each host. muster \
and the program are at the same path everywhere.

Of several programs each has its ranks: muster run --nodes 2 -n 2 -- ./a : -n 6 ./b. A word : of its own always \
separates programs.

Not there: MPI_Comm_spawn and MPI_Comm_spawn_multiple, and anything for PMIx tools (debuggers, PMIx_tool_init). \
What these ask for is refused with PMIX_ERR_NOT_SUPPORTED, a line says so, and the job goes on.";

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

fn play(args: &RunArgs) -> Result<u8, CliError> {
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
    if is_emulated && layout.nodes().len() as u32 * args.rails > emulate::ADDRESSES_MOST {
        let (nodes, rails, most) = (layout.nodes().len(), args.rails, emulate::ADDRESSES_MOST);
        let why = format!("{nodes} nodes of {rails} rails; there are {most} addresses for rails");
        return Err(CliError::usage("run", why));
    }
    let output = Output {
        label: args.label,
        file: args.output.clone(),
    };
    output.check().map_err(|why| CliError::usage("run", why))?;
    let plan = Plan {
        job,
        layout,
        programs,
        policy: args.exit_policy,
        export: exported(&args.export).map_err(usage)?,
        output,
        patience: Duration::from_secs(args.patience),
        bind: args.bind,
        neighbours,
        stdin: !matches!(place, Place::Host(_)),
        verbose: args.verbose,
    };
    let outcome = match place {
        Place::Starter(_) => emulate::run(&plan, args.rails, &words()),
        Place::Emulated(own, _, files) => {
            let mut met = false;
            match node::run(&plan, own, &files, &mut || met = true) {
                // The node is lost, and not the job.
                Err(error @ Error::Agent(_)) if met => {
                    return Err(failed(error).exit_code(node::GIVEN_UP));
                }
                outcome => outcome.map(node::watched),
            }
        }
        Place::Remote(hosts) => {
            return remote::run(&plan, &hosts, &args.ssh, &args.export, &words());
        }
        Place::Host(step) => return remote::serve(&plan, &step, &words()),
        Place::Step(step) => return step::run(&plan, &step, &words()),
    };
    outcome.map_err(failed)
}

fn place(args: &RunArgs) -> Result<Place, CliError> {
    if let Some((own, count, files)) = emulate::told() {
        return Ok(Place::Emulated(own, count, files));
    }
    if let Some(step) = remote::told() {
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
    if let Some(count) = args.nodes {
        return Ok(Place::Starter(count as usize));
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let step = Step::read(variable).map_err(|why| CliError::usage("run", why))?;
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
fn exported(words: &[String]) -> Result<Vec<(OsString, OsString)>, String> {
    let mut given = Vec::new();
    for word in words {
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

/// This command line, for a launcher that is this program once more.
fn words() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

fn failed(error: Error) -> CliError {
    let status = error.status();
    CliError::new("run", error).exit_code(status)
}
