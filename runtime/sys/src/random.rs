//! Random bytes from the kernel.

/// Fills the buffer from the kernel's entropy (`getrandom(2)`). Blocks only before the entropy is ready at boot;
/// an interrupted call is repeated.
pub fn fill(buffer: &mut [u8]) {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the kernel writes at most `rest.len()` bytes to `rest`.
        let answer = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        filled += usize::try_from(answer).unwrap_or(0);
    }
}
