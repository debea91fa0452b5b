//! The few functions that libfabric's library exports, found at run time.
//!
//! libfabric keeps old layouts of `struct fi_info` usable by symbol versions: 1.17 exports `fi_getinfo` as
//! `FABRIC_1.3`; 2.5 also exports it as `FABRIC_1.9`, and makes that the default. A plain `dlsym` takes the
//! default, and so could combine the structs of one version with the code of another. `dlvsym` requests the
//! version that belongs to the headers that this crate was compiled with ([`ABI`]).
//!
//! A loaded library is never closed: its providers register handlers that run at exit.

use crate::bindings::{fi_fabric_attr, fi_info, fid_fabric};
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::mem::transmute;
use std::os::unix::ffi::OsStrExt;

/// Symbol version of the exported functions that take or return a `struct fi_info`.
pub const ABI: &str = env!("MUSTER_LIBFABRIC_ABI");

/// Version of the libfabric headers that this was compiled with.
pub const HEADERS: &str = env!("MUSTER_LIBFABRIC_HEADERS");

/// The library's name, unless the caller or the environment gives a path.
const SONAME: &str = "libfabric.so.1";

/// Environment variable that names another library.
const PATH_VARIABLE: &str = "MUSTER_LIBFABRIC";

/// Why libfabric could not be loaded. A library of the wrong version stays mapped; otherwise the process is
/// unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The dynamic loader refused the library.
    #[error(
        "libfabric cannot be loaded from {library:?}: {reason}; install libfabric1 (Debian, \
         Ubuntu) or libfabric (Red Hat, SUSE, Spack), or set MUSTER_LIBFABRIC to the path of a \
         libfabric.so.1"
    )]
    NotLoaded {
        /// Name or path that was tried.
        library: String,
        /// The dynamic loader's error.
        reason: String,
    },
    /// The library lacks a function in the version that this crate was compiled for.
    #[error(
        "{library:?} cannot be used as libfabric: it has no {symbol} of version {version}, which \
         belongs to the headers of libfabric {headers} that this program was built with; set \
         MUSTER_LIBFABRIC to a libfabric.so.1 of that version or newer, or build again with the \
         headers of the one that is installed"
    )]
    WrongVersion {
        /// Name or path that was tried.
        library: String,
        /// The function that is missing.
        symbol: &'static str,
        /// Its symbol version.
        version: String,
        /// Version of the headers.
        headers: &'static str,
    },
}

// SAFETY of a call: hints are NULL or valid, `info` is writable; the result must be freed with `fi_freeinfo`.
type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int;
// SAFETY of a call: the list came from `fi_getinfo` or `fi_dupinfo` and is not used afterwards.
type FreeInfo = unsafe extern "C" fn(info: *mut fi_info);
// SAFETY of a call: the info is NULL or valid.
type DupInfo = unsafe extern "C" fn(info: *const fi_info) -> *mut fi_info;
// SAFETY of a call: the attributes come from an info; `fabric` is writable.
type OpenFabric = unsafe extern "C" fn(
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int;
// SAFETY of a call: none.
type Version = unsafe extern "C" fn() -> u32;
// SAFETY of a call: none; the text is constant.
type StrError = unsafe extern "C" fn(error: c_int) -> *const c_char;

/// The exported functions of a loaded libfabric.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // The names are libfabric's; its manual pages are the documentation.
pub struct Exports {
    pub fi_getinfo: GetInfo,
    pub fi_freeinfo: FreeInfo,
    pub fi_dupinfo: DupInfo,
    pub fi_fabric: OpenFabric,
    pub fi_version: Version,
    pub fi_strerror: StrError,
}

impl Exports {
    /// Loads the library that `MUSTER_LIBFABRIC` names, else `libfabric.so.1`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load() -> Result<Exports, LoadError> {
        let configured = std::env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty());
        Exports::load_from(&configured.unwrap_or_else(|| OsString::from(SONAME)))
    }

    /// Loads the library of this name or path.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_from(library: &OsStr) -> Result<Exports, LoadError> {
        let name = library.to_string_lossy().into_owned();
        let handle = open(library, &name)?;
        let find = |symbol, version| lookup(handle, &name, symbol, version);
        let fi_getinfo = find(c"fi_getinfo", ABI)?;
        let fi_freeinfo = find(c"fi_freeinfo", ABI)?;
        let fi_dupinfo = find(c"fi_dupinfo", ABI)?;
        let fi_fabric = find(c"fi_fabric", "FABRIC_1.1")?;
        let fi_version = find(c"fi_version", "FABRIC_1.0")?;
        let fi_strerror = find(c"fi_strerror", "FABRIC_1.0")?;
        // SAFETY: each address was looked up by the function's name and by the symbol version that fixes its
        // signature; the type here has that signature.
        unsafe {
            Ok(Exports {
                fi_getinfo: transmute::<*mut c_void, GetInfo>(fi_getinfo),
                fi_freeinfo: transmute::<*mut c_void, FreeInfo>(fi_freeinfo),
                fi_dupinfo: transmute::<*mut c_void, DupInfo>(fi_dupinfo),
                fi_fabric: transmute::<*mut c_void, OpenFabric>(fi_fabric),
                fi_version: transmute::<*mut c_void, Version>(fi_version),
                fi_strerror: transmute::<*mut c_void, StrError>(fi_strerror),
            })
        }
    }
}

/// Opens the library without making its symbols global: an MPI in the same process may load another one.
fn open(library: &OsStr, name: &str) -> Result<*mut c_void, LoadError> {
    let not_loaded = |reason: String| LoadError::NotLoaded {
        library: name.to_owned(),
        reason,
    };
    let path = CString::new(library.as_bytes())
        .map_err(|_| not_loaded("the path contains a zero byte".to_owned()))?;
    // SAFETY: the path is a C string; libfabric's constructors may run in any process.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        Err(not_loaded(loader_error()))
    } else {
        Ok(handle)
    }
}

fn lookup(
    handle: *mut c_void,
    library: &str,
    symbol: &'static CStr,
    version: &str,
) -> Result<*mut c_void, LoadError> {
    let version_name = CString::new(version).expect("symbol versions contain no zero byte");
    // SAFETY: the handle comes from dlopen and is never closed; both names are C strings.
    let address = unsafe { libc::dlvsym(handle, symbol.as_ptr(), version_name.as_ptr()) };
    if address.is_null() {
        return Err(LoadError::WrongVersion {
            library: library.to_owned(),
            symbol: symbol.to_str().expect("libfabric's names are ASCII"),
            version: version.to_owned(),
            headers: HEADERS,
        });
    }
    Ok(address)
}

/// The dynamic loader's error message for the last failure on this thread.
fn loader_error() -> String {
    // SAFETY: dlerror has no preconditions; its text lives until this thread's next dl call.
    unsafe {
        let message = libc::dlerror();
        if message.is_null() {
            return "no reason given".to_owned();
        }
        CStr::from_ptr(message).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_library_loads_and_reports_its_version() {
        let exports = Exports::load().expect("libfabric is installed where tests run");
        // SAFETY: fi_version has no preconditions.
        let version = unsafe { (exports.fi_version)() };
        assert!(
            version >= crate::fi_version_of(1, 17),
            "version {version:#x}"
        );
    }

    #[test]
    fn the_error_for_a_missing_library_gives_its_name_reason_and_remedy() {
        let error = Exports::load_from(OsStr::new("/nonexistent/libfabric.so.1")).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(
            "libfabric cannot be loaded from \"/nonexistent/libfabric.so.1\": \
             /nonexistent/libfabric.so.1: cannot open shared object file: No such file"
        ));
        assert!(text.ends_with(
            "; install libfabric1 (Debian, Ubuntu) or libfabric (Red Hat, SUSE, Spack), or set \
             MUSTER_LIBFABRIC to the path of a libfabric.so.1"
        ));
    }

    #[test]
    fn another_library_is_refused_by_the_missing_symbol_version() {
        let error = Exports::load_from(OsStr::new("libc.so.6")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "\"libc.so.6\" cannot be used as libfabric: it has no fi_getinfo of version {ABI}, \
                 which belongs to the headers of libfabric {HEADERS} that this program was built \
                 with; set MUSTER_LIBFABRIC to a libfabric.so.1 of that version or newer, or build \
                 again with the headers of the one that is installed"
            )
        );
    }
}
