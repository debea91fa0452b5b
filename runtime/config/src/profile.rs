//! The names of the timing profiles, as a user types them.

use muster_protocol::Profile;
use thiserror::Error;

const NAMES: [(&str, Profile); 3] = [
    ("fast", Profile::Fast),
    ("standard", Profile::Standard),
    ("quiet", Profile::Quiet),
];

/// A profile that does not exist.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("profile {0:?} does not exist; choose fast, standard or quiet (--profile, MUSTER_PROFILE)")]
pub struct ProfileError(String);

/// The profile of this name.
///
/// # Errors
/// If there is none.
pub fn parse_profile(text: &str) -> Result<Profile, ProfileError> {
    let found = NAMES.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, profile)| *profile)
        .ok_or_else(|| ProfileError(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_found_and_unknown_ones_list_the_choice() {
        assert_eq!(parse_profile("fast"), Ok(Profile::Fast));
        let error = parse_profile("hasty").unwrap_err().to_string();
        assert!(
            error.contains("hasty") && error.contains("fast, standard or quiet"),
            "{error}"
        );
    }
}
