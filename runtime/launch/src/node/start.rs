//! The start of this node's ranks: their programs, their environment, their PMIx server.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::output::Outputs;
use super::ranks::Start;
use super::session::Session;
use super::{Launcher, environment, library, mpich};
use crate::Error;
use crate::core::messages::Input;
use muster_pmix::server::{Binding, JobFacts, Server};

/// Most arguments of a program that are checked for being the program that it starts.
const ARGUMENTS_MAX: usize = 8;

/// A program's name as text; an empty one is quoted to be visible.
fn shown(name: &OsStr) -> String {
    match name.to_string_lossy() {
        empty if empty.is_empty() => "''".to_owned(),
        name => name.into_owned(),
    }
}

impl Launcher<'_> {
    /// The files of the programs that this node's ranks run.
    pub(super) fn find_programs(&self) -> Result<BTreeMap<usize, PathBuf>, Error> {
        let mut files = BTreeMap::new();
        for rank in self.plan.layout.ranks_of(self.own) {
            let which = self.plan.program_of(rank);
            let name = &self.plan.programs[which].name;
            if let Entry::Vacant(place) = files.entry(which) {
                place.insert(mpich::startable(&self.linker, name).map_err(|why| {
                    Error::Program {
                        program: shown(name),
                        node: self.name(),
                        why,
                    }
                })?);
            }
        }
        Ok(files)
    }

    /// The files of all programs of the job, as far as they exist on this node, so that all launchers choose
    /// the same libpmix.
    fn all_programs(&self, own: &BTreeMap<usize, PathBuf>) -> Vec<PathBuf> {
        let programs = self.plan.programs.iter().enumerate();
        let file = |which: usize, name: &OsStr| {
            let own = own.get(&which).cloned();
            own.or_else(|| library::program(name).ok())
        };
        programs
            .filter_map(|(which, program)| file(which, &program.name))
            .collect()
    }

    /// What the PMIx server tells the ranks of the job.
    pub(super) fn job_facts(&self, session: &Session, bindings: Vec<Binding>) -> JobFacts {
        let layout = &self.plan.layout;
        let nodes = 0..layout.nodes().len();
        let programs = self.plan.programs.iter();
        JobFacts {
            namespace: self.namespace(),
            nodes: layout.nodes().to_vec(),
            ranks: nodes.map(|node| layout.ranks_of(node).collect()).collect(),
            programs: programs.map(|program| program.ranks).collect(),
            own: self.own,
            bindings,
            directory: session.directory.clone(),
        }
    }

    /// The libpmix of the ranks' MPI. Warns, once for the job, of programs that cannot use it.
    pub(super) fn find_library(&self, files: &BTreeMap<usize, PathBuf>) -> PathBuf {
        let programs = self.all_programs(files);
        let programs: Vec<&Path> = programs.iter().map(PathBuf::as_path).collect();
        let arguments = self.plan.programs.iter();
        let arguments = arguments.flat_map(|program| program.arguments.iter().take(ARGUMENTS_MAX));
        let arguments: Vec<&OsStr> = arguments.map(OsString::as_os_str).collect();
        if self.own == 0
            && let Some(warning) = mpich::warning(&self.linker, &arguments)
        {
            self.print(&warning);
        }
        library::find(&self.linker, &programs, &arguments)
    }

    pub(super) fn start_ranks(
        &mut self,
        server: &Server,
        files: &BTreeMap<usize, PathBuf>,
        common: &[(OsString, OsString)],
        bindings: Option<&[Binding]>,
        outputs: &Outputs,
    ) -> Result<(), Error> {
        for (place, rank) in self.plan.layout.ranks_of(self.own).enumerate() {
            let binding = bindings.and_then(|all| all.get(place));
            let cores = binding.map_or(&[][..], |binding| &binding.processors);
            if let Some(binding) = binding.filter(|_| self.plan.verbose) {
                self.print(&format!(
                    "rank {rank} is bound to the processors {cores:?}: {}",
                    binding.locality
                ));
            }
            let mut variables = common.to_vec();
            variables.extend(server.environment(rank)?);
            variables.extend(environment::of_mpirun(&self.plan.layout, self.own, rank));
            let which = self.plan.program_of(rank);
            let (program, file) = (&self.plan.programs[which], &files[&which]);
            let start = Start {
                rank,
                program: file,
                arguments: &program.arguments,
                environment: &variables,
                processors: cores,
                stdin: rank == 0 && self.plan.stdin,
            };
            let started = self.ranks.start(&start, outputs, &self.epoll);
            if started.is_ok() {
                self.tell(Input::RankStarted(rank));
            }
            let node = self.name();
            started.map_err(|cause| match cause.kind() {
                std::io::ErrorKind::Other => Error::system(format!("rank {rank} on {node}"))(cause),
                kind => Error::Program {
                    program: shown(&self.plan.programs[which].name),
                    node,
                    why: match kind {
                        // The file itself was found before.
                        std::io::ErrorKind::NotFound => {
                            "what its first line names after #!, or its loader, is not there".into()
                        }
                        _ => cause.to_string(),
                    },
                },
            })?;
        }
        Ok(())
    }

    /// The variables that every rank of this node gets.
    pub(super) fn common_environment(
        &self,
        session: &Session,
        libpmix: &Path,
    ) -> Vec<(OsString, OsString)> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cores = cores / self.plan.neighbours.max(1);
        let mut texts: Vec<(&str, String)> =
            environment::defaults(&self.plan.layout, self.own, cores)
                .into_iter()
                .map(|(name, value)| (name, value.to_owned()))
                .collect();
        if let Some(memory) = &session.memory {
            let memory = memory.path().display().to_string();
            texts.push(("OMPI_MCA_btl_sm_backing_directory", memory.clone()));
            // The parameter's name in Open MPI 4.
            texts.push(("OMPI_MCA_btl_vader_backing_directory", memory));
        }
        let (name, value) = environment::OPEN_MPI_4;
        texts.push((name, value.to_owned()));
        if let Some(prefix) = library::prefix(libpmix) {
            let prefix = prefix.display().to_string();
            texts.push(("PMIX_PREFIX", prefix.clone()));
            texts.push(("OPAL_PREFIX", prefix));
        }
        let file = environment::users_file();
        let mut variables = environment::unset(texts, |name| {
            std::env::var_os(name).is_some() || environment::is_in_file(name, &file)
        });
        if self.plan.verbose {
            for (name, value) in &variables {
                self.print(&format!("{}={}", name.display(), value.display()));
            }
        }
        // A rank that uses Muster attaches to the agent of its launcher.
        variables.extend(self.plan.export.iter().cloned());
        variables.push(("MUSTER_JOB".into(), self.plan.job.clone().into()));
        variables.push(("MUSTER_NODE".into(), self.name().into()));
        variables
    }
}
