//! The heap usage of this process, as the C library counts it.

/// Bytes that the C library has allocated and that are not freed, in all of its arenas; none if the library
/// does not count them.
#[must_use]
pub fn in_use() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallinfo2 takes nothing and returns a plain struct; it locks each arena itself.
        let info = unsafe { libc::mallinfo2() };
        Some((info.uordblks + info.hblkhd) as u64)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    #[test]
    fn allocated_memory_is_counted() {
        let before = super::in_use().unwrap();
        let held = vec![1u8; 8 << 20];
        let during = super::in_use().unwrap();
        assert!(
            during >= before + (7 << 20),
            "{before} {during} {}",
            held.len()
        );
    }
}
