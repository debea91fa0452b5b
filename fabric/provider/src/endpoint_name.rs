//! Addresses of a provider's own kind: what `fi_getname(3)` returns, opaque to everything but the provider.

use std::fmt;

/// The longest address of a provider that is supported, bytes; libfabric's own are at most 48.
pub(crate) const NAME_MAX: usize = 64;

/// The provider's address of an endpoint, at least one byte. Zeros at its end are left out: all addresses of a provider
/// have the same length, which the provider of the reader knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointName(Box<[u8]>);

impl EndpointName {
    /// Takes an address as the provider returns it; none if it is empty or longer than 64 bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<EndpointName> {
        let last = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        let name = bytes.get(..=last)?;
        (bytes.len() <= NAME_MAX).then(|| EndpointName(name.into()))
    }

    /// Reads hexadecimal digits; none if they are no address.
    pub(crate) fn parse(text: &str) -> Option<EndpointName> {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let pair = |pair: &[u8]| match *pair {
            [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        EndpointName::new(&bytes?)
    }

    /// The address in the provider's length; none if it is longer.
    pub(crate) fn padded(&self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = self.0.to_vec();
        let fits = bytes.len() <= length;
        bytes.resize(length, 0);
        fits.then_some(bytes)
    }
}

impl AsRef<[u8]> for EndpointName {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let name = EndpointName::new(&[0x7c, 1, 0, 0xff, 0, 0, 0]).unwrap();
        assert_eq!(name.to_string(), "7c0100ff");
        assert_eq!(EndpointName::parse("7C0100ff"), Some(name.clone()));
        assert_eq!(EndpointName::parse("7c0100ff0000"), Some(name.clone()));
        assert_eq!(name.padded(6), Some(vec![0x7c, 1, 0, 0xff, 0, 0]));
        assert_eq!(name.padded(3), None);
        let zeros = EndpointName::new(&[0; 8]).unwrap();
        assert_eq!(EndpointName::parse(&zeros.to_string()), Some(zeros));
        for wrong in [
            "",
            "7",
            "7c0",
            "7g",
            "+7",
            "0x7c",
            &"00".repeat(NAME_MAX + 1),
        ] {
            assert_eq!(EndpointName::parse(wrong), None, "{wrong}");
        }
    }
}
