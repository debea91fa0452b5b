//! What the parts of the page share.

/// Maximum number of incidents that are drawn and listed. The page states how many more there are.
pub(super) const ROWS_MAX: usize = 5000;

/// The text with HTML's special characters escaped. Control characters are replaced by U+FFFD.
pub(super) fn escaped(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
