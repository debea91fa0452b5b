//! Lists of `pmix_info_t` together with the memory that they point to.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pmix_sys as sys;

use super::super::ffi::{blank_info, process};
use super::{JobFacts, ServerError, text};

/// Infos, and the memory that they point to.
#[derive(Default)]
pub(super) struct Infos {
    pub(super) list: Vec<sys::pmix_info_t>,
    texts: Vec<CString>,
    blobs: Vec<Vec<u8>>,
    subject: Option<Box<sys::pmix_proc_t>>,
    members: Vec<sys::pmix_proc_t>,
    #[expect(clippy::vec_box, reason = "the library has their addresses")]
    arrays: Vec<Box<sys::pmix_data_array_t>>,
    nested: Vec<Self>,
}

impl Drop for Infos {
    fn drop(&mut self) {
        for info in &self.list {
            if u32::from(info.value.type_) == sys::PMIX_BYTE_OBJECT {
                // SAFETY: only `handed_over` makes such an object, with malloc; NULL if the library took it.
                unsafe { libc::free(info.value.data.bo.bytes.cast()) };
            }
        }
    }
}

impl Infos {
    fn add(&mut self, key: &CStr, kind: u32) -> &mut sys::pmix_info_t {
        let mut info = blank_info(key);
        info.value.type_ = kind as sys::pmix_data_type_t;
        self.list.push(info);
        let last = self.list.len() - 1;
        &mut self.list[last]
    }

    pub(super) fn flag(&mut self, key: &CStr) {
        self.add(key, sys::PMIX_BOOL).value.data.flag = true;
    }

    pub(super) fn number(&mut self, key: &CStr, number: u32) {
        self.add(key, sys::PMIX_UINT32).value.data.uint32 = number;
    }

    fn short(&mut self, key: &CStr, number: u16) {
        self.add(key, sys::PMIX_UINT16).value.data.uint16 = number;
    }

    fn rank(&mut self, key: &CStr, rank: u32) {
        self.add(key, sys::PMIX_PROC_RANK).value.data.rank = rank;
    }

    pub(super) fn size(&mut self, key: &CStr, number: usize) {
        self.add(key, sys::PMIX_SIZE).value.data.size = number;
    }

    pub(super) fn text(&mut self, key: &CStr, string: CString) {
        let start = string.as_ptr().cast_mut();
        self.texts.push(string);
        self.add(key, sys::PMIX_STRING).value.data.string = start;
    }

    /// A list in one of PMIx's own compressed forms, with its zero at the end.
    fn expression(&mut self, key: &CStr, mut bytes: Vec<u8>) {
        let (start, size) = (bytes.as_mut_ptr(), bytes.len());
        self.blobs.push(bytes);
        let value = &mut self.add(key, sys::PMIX_REGEX).value;
        value.data.bo = sys::pmix_byte_object_t {
            bytes: start.cast(),
            size,
        };
    }

    /// Bytes that the library takes over when it uses them; it then writes NULL in their place.
    pub(super) fn handed_over(&mut self, key: &CStr, bytes: &[u8]) {
        // SAFETY: fresh memory of that size, written before it is used; without memory, the value is omitted.
        let object = unsafe {
            let start = libc::malloc(bytes.len().max(1)).cast::<u8>();
            if start.is_null() {
                return;
            }
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            sys::pmix_byte_object_t {
                bytes: start.cast(),
                size: bytes.len(),
            }
        };
        self.add(key, sys::PMIX_BYTE_OBJECT).value.data.bo = object;
    }

    /// The members of something. At most one such value per list.
    pub(super) fn members(&mut self, key: &CStr, members: Vec<sys::pmix_proc_t>) {
        self.members = members;
        let (start, size) = (self.members.as_mut_ptr().cast(), self.members.len());
        self.array(key, sys::PMIX_PROC, start, size);
    }

    /// Adds a list as an element of this list.
    fn nest(&mut self, key: &CStr, mut infos: Self) {
        let (start, size) = (infos.list.as_mut_ptr().cast(), infos.list.len());
        // The elements of a list stay at their address when the list is moved.
        self.nested.push(infos);
        self.array(key, sys::PMIX_INFO, start, size);
    }

    fn array(&mut self, key: &CStr, kind: u32, array: *mut std::ffi::c_void, size: usize) {
        let type_ = kind as sys::pmix_data_type_t;
        let mut whole = Box::new(sys::pmix_data_array_t { type_, size, array });
        let start = &raw mut *whole;
        self.arrays.push(whole);
        self.add(key, sys::PMIX_DATA_ARRAY).value.data.darray = start;
    }

    /// The process that an event is about. At most one such value per list.
    pub(super) fn process(&mut self, key: &CStr, process: &sys::pmix_proc_t) {
        let mut subject = Box::new(*process);
        let start = &raw mut *subject;
        self.subject = Some(subject);
        self.add(key, sys::PMIX_PROC).value.data.proc_ = start;
    }
}

/// Identity and directories of the server.
pub(super) fn of_server(facts: &JobFacts) -> Result<Infos, ServerError> {
    let mut infos = Infos::default();
    let name = facts.nodes.get(facts.own).map_or("", String::as_str);
    infos.text(sys::PMIX_SERVER_TMPDIR, path(&facts.directory)?);
    infos.text(sys::PMIX_SYSTEM_TMPDIR, path(&facts.directory)?);
    infos.text(sys::PMIX_HOSTNAME, text(name)?);
    infos.text(
        sys::PMIX_SERVER_NSPACE,
        text(&format!("{}.server", facts.namespace))?,
    );
    infos.rank(sys::PMIX_SERVER_RANK, facts.own as u32);
    // Ranks get the machine's topology from the server, so they need no discovery of their own.
    infos.flag(sys::PMIX_SERVER_SHARE_TOPOLOGY);
    Ok(infos)
}

/// The job data of the ranks.
pub(super) fn of_job(
    facts: &JobFacts,
    nodes: Vec<u8>,
    ranks: Vec<u8>,
) -> Result<Infos, ServerError> {
    let mut infos = Infos::default();
    let size = facts.ranks.iter().map(Vec::len).sum::<usize>() as u32;
    infos.expression(sys::PMIX_NODE_MAP, nodes);
    infos.expression(sys::PMIX_PROC_MAP, ranks);
    for key in [sys::PMIX_JOB_SIZE, sys::PMIX_UNIV_SIZE, sys::PMIX_MAX_PROCS] {
        infos.number(key, size);
    }
    infos.number(sys::PMIX_JOB_NUM_APPS, facts.programs.len() as u32);
    let namespace = text(&facts.namespace)?;
    let own = facts.ranks.get(facts.own).map_or(&[][..], Vec::as_slice);
    let local = own.iter().map(|rank| process(&namespace, *rank)).collect();
    infos.members(sys::PMIX_LOCAL_PROCS, local);
    add_programs(&mut infos, facts);
    add_ranks(&mut infos, facts)?;
    infos.text(sys::PMIX_JOBID, text(&facts.namespace)?);
    infos.text(sys::PMIX_TMPDIR, path(&facts.directory)?);
    infos.text(sys::PMIX_NSDIR, path(&facts.directory)?);
    Ok(infos)
}

/// Each program with its size and its lowest rank.
fn add_programs(infos: &mut Infos, facts: &JobFacts) {
    let mut lowest = 0;
    for (number, size) in (0..).zip(&facts.programs) {
        let mut one = Infos::default();
        one.number(sys::PMIX_APPNUM, number);
        one.number(sys::PMIX_APP_SIZE, *size);
        one.rank(sys::PMIX_APPLDR, lowest);
        infos.nest(sys::PMIX_APP_INFO_ARRAY, one);
        lowest += size;
    }
}

/// Adds each rank with its program, its index in it, and its binding. Each rank needs all of its values here: if some
/// are given, libpmix derives none.
fn add_ranks(infos: &mut Infos, facts: &JobFacts) -> Result<(), ServerError> {
    let programs = facts.programs.iter().enumerate();
    let of_ranks: Vec<(u32, u32)> = programs
        .flat_map(|(program, ranks)| (0..*ranks).map(move |index| (program as u32, index)))
        .collect();
    for (node, (name, ranks)) in facts.nodes.iter().zip(&facts.ranks).enumerate() {
        for (index, rank) in ranks.iter().enumerate() {
            let mut one = Infos::default();
            one.rank(sys::PMIX_RANK, *rank);
            let (program, of_program) = of_ranks.get(*rank as usize).copied().unwrap_or_default();
            one.number(sys::PMIX_APPNUM, program);
            one.rank(sys::PMIX_APP_RANK, of_program);
            // There is only one job, and no rank is ever restarted.
            one.rank(sys::PMIX_GLOBAL_RANK, *rank);
            one.number(sys::PMIX_REINCARNATION, 0);
            one.text(sys::PMIX_HOSTNAME, text(name)?);
            one.number(sys::PMIX_NODEID, node as u32);
            one.short(sys::PMIX_LOCAL_RANK, index as u16);
            one.short(sys::PMIX_NODE_RANK, index as u16);
            // Ranks of other nodes share nothing with those of this one.
            if let Some(binding) = facts.bindings.get(index).filter(|_| node == facts.own) {
                one.text(sys::PMIX_CPUSET, text(&binding.cpuset)?);
                if !binding.locality.is_empty() {
                    one.text(sys::PMIX_LOCALITY_STRING, text(&binding.locality)?);
                }
            }
            infos.nest(sys::PMIX_PROC_INFO_ARRAY, one);
        }
    }
    Ok(())
}

fn path(path: &Path) -> Result<CString, ServerError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| ServerError::BadText(path.display().to_string()))
}
