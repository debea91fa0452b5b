//! The settings that a C program passes to `muster_init`.

use std::ffi::{CStr, c_char};

use crate::error::{Code, Failure};

/// Settings, as in `muster.h`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "the name that C sees")]
pub struct muster_config_t {
    /// Size of the caller's struct.
    pub struct_size: usize,
    /// The job, or NULL.
    pub job: *const c_char,
    /// This node's name, or NULL.
    pub node: *const c_char,
    /// The directory of the agent's socket, or NULL.
    pub directory: *const c_char,
    /// This process's rank, or -1.
    pub rank: i32,
    /// Ranks in the job, or -1.
    pub ranks: i32,
    /// `MUSTER_NO_THREAD`, `MUSTER_FEED_ULFM`.
    pub flags: u32,
    /// How long `muster_init` may take, 0 for the default.
    pub timeout_ms: u32,
}

/// The size of the struct in version 0.1: the smallest that a caller can have.
const FIRST_SIZE: usize = size_of::<muster_config_t>();
/// No version will have a larger struct: a larger `struct_size` was not set by MUSTER_CONFIG_INIT.
const LAST_SIZE: usize = 4096;
const NO_THREAD: u32 = 1;
const FEED_ULFM: u32 = 2;

/// The same settings, checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) job: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) directory: Option<String>,
    pub(crate) rank: Option<u32>,
    pub(crate) ranks: Option<u32>,
    pub(crate) no_thread: bool,
    pub(crate) feed_ulfm: bool,
    pub(crate) timeout_ms: Option<u32>,
}

impl Settings {
    /// Checks the caller's settings; NULL means all defaults.
    pub(crate) fn read(config: *const muster_config_t) -> Result<Self, Failure> {
        if config.is_null() {
            return Ok(Self::default());
        }
        // SAFETY: not NULL; the first member of every version is its size.
        let size = unsafe { config.cast::<usize>().read() };
        if size < FIRST_SIZE {
            return Err(Failure::new(
                Code::StructSize,
                format!(
                    "config->struct_size is {size}, below the minimum of {FIRST_SIZE}; use MUSTER_CONFIG_INIT"
                ),
            ));
        }
        if size > LAST_SIZE {
            return Err(Failure::new(
                Code::StructSize,
                format!(
                    "config->struct_size is {size}, larger than in any version; use MUSTER_CONFIG_INIT"
                ),
            ));
        }
        // SAFETY: the caller's struct has so many bytes, by its size, and MUSTER_CONFIG_INIT has set all of them.
        let newer = unsafe {
            let bytes = config.cast::<u8>().add(FIRST_SIZE);
            std::slice::from_raw_parts(bytes, size - FIRST_SIZE)
        };
        if newer.iter().any(|byte| *byte != 0) {
            return Err(wrong(format!(
                "config has settings after its first {FIRST_SIZE} bytes, from a newer muster.h, that version {} \
                 does not know; leave them as MUSTER_CONFIG_INIT sets them, or use a newer library",
                env!("CARGO_PKG_VERSION")
            )));
        }
        // SAFETY: the caller's struct has all members of this version, by its size.
        let config = unsafe { &*config };
        let settings = Self {
            job: text("job", config.job)?,
            node: text("node", config.node)?,
            directory: text("directory", config.directory)?,
            rank: number("rank", config.rank)?,
            ranks: number("ranks", config.ranks)?,
            no_thread: config.flags & NO_THREAD != 0,
            feed_ulfm: config.flags & FEED_ULFM != 0,
            timeout_ms: (config.timeout_ms > 0).then_some(config.timeout_ms),
        };
        let unknown = config.flags & !(NO_THREAD | FEED_ULFM);
        if unknown != 0 {
            return Err(wrong(format!(
                "config->flags has the unknown bits {unknown:#x}"
            )));
        }
        if let (Some(rank), Some(ranks)) = (settings.rank, settings.ranks)
            && rank >= ranks
        {
            return Err(wrong(format!(
                "config->rank is {rank}, but config->ranks is {ranks}"
            )));
        }
        Ok(settings)
    }
}

fn wrong(message: String) -> Failure {
    Failure::new(Code::Config, message)
}

fn text(member: &str, value: *const c_char) -> Result<Option<String>, Failure> {
    if value.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and NUL-terminated, as the header requires.
    let value = unsafe { CStr::from_ptr(value) };
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(value) => Ok(Some(value.to_owned())),
        Err(_) => Err(wrong(format!("config->{member} is not UTF-8: {value:?}"))),
    }
}

fn number(member: &str, value: i32) -> Result<Option<u32>, Failure> {
    match value {
        -1 => Ok(None),
        value => u32::try_from(value).map(Some).map_err(|_| {
            wrong(format!(
                "config->{member} is {value}; it must be 0 or more, or MUSTER_AUTO"
            ))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> muster_config_t {
        muster_config_t {
            struct_size: FIRST_SIZE,
            job: std::ptr::null(),
            node: c"".as_ptr(),
            directory: c"/run/muster".as_ptr(),
            rank: -1,
            ranks: 4,
            flags: NO_THREAD,
            timeout_ms: 0,
        }
    }

    #[test]
    fn unset_settings_are_detected() {
        let config = config();
        let settings = Settings::read(&raw const config).expect("right");
        assert_eq!(
            settings,
            Settings {
                directory: Some("/run/muster".to_owned()),
                ranks: Some(4),
                no_thread: true,
                ..Settings::default()
            }
        );
        assert_eq!(
            Settings::read(std::ptr::null()).ok(),
            Some(Settings::default())
        );
    }

    /// A caller with a newer header is accepted unless it sets something that this version does not know.
    #[test]
    fn settings_of_a_newer_header_are_refused_unless_they_are_unset() {
        #[repr(C)]
        struct Newer {
            known: muster_config_t,
            further: [u32; 2],
        }
        let mut newer = Newer {
            known: config(),
            further: [0; 2],
        };
        newer.known.struct_size = size_of::<Newer>();
        let read = |newer: &Newer| Settings::read((&raw const *newer).cast());
        assert_eq!(
            read(&newer).ok(),
            Settings::read(&raw const newer.known).ok()
        );
        newer.further[1] = 1;
        let failure = read(&newer).expect_err("an unknown setting");
        assert_eq!(failure.code, Code::Config);
        assert!(failure.message.contains("newer"), "{}", failure.message);
        newer.known.struct_size = LAST_SIZE + 1;
        let failure = read(&newer).expect_err("no size");
        assert_eq!(failure.code, Code::StructSize);
    }

    #[test]
    fn a_wrong_setting_is_named() {
        let mut bad = config();
        bad.rank = 4;
        let failure = Settings::read(&raw const bad).expect_err("rank 4 of 4");
        assert_eq!(failure.code, Code::Config);
        assert_eq!(failure.message, "config->rank is 4, but config->ranks is 4");
    }
}
