//! `MemberInfo` is a member's name, group and address, in one allocation.
//!
//! Every member stores this for every other member; three allocations would cost more than the text in
//! them.

/// Name, group and address of a member.
#[derive(Clone, Debug)]
pub struct MemberInfo {
    text: Box<[u8]>,
    name_size: u8,
    group_size: u8,
}

impl MemberInfo {
    /// The info of a member. Texts are cut at 255 bytes; the bounds of names and groups are far below.
    pub fn new(name: &str, group: &str, address: &[u8]) -> Self {
        let cut = |text: &str| text.len().min(usize::from(u8::MAX)) as u8;
        let (name_size, group_size) = (cut(name), cut(group));
        let (name, group) = (name.as_bytes(), group.as_bytes());
        let parts = [
            &name[..name_size.into()],
            &group[..group_size.into()],
            address,
        ];
        Self {
            text: parts.concat().into(),
            name_size,
            group_size,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.word(0, self.name_size.into())
    }

    /// The group; empty for none.
    pub fn group(&self) -> &str {
        let start = usize::from(self.name_size);
        self.word(start, start + usize::from(self.group_size))
    }

    /// The address.
    pub fn address(&self) -> &[u8] {
        let start = usize::from(self.name_size) + usize::from(self.group_size);
        &self.text[start..]
    }

    fn word(&self, start: usize, end: usize) -> &str {
        core::str::from_utf8(&self.text[start..end]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_back() {
        for (name, group, address) in [
            ("n", "", &b"a"[..]),
            ("node17", "rack3", b"10.0.0.1@tcp0"),
            ("", "", &[0xff; 255]),
        ] {
            let info = MemberInfo::new(name, group, address);
            assert_eq!(info.name(), name);
            assert_eq!(info.group(), group);
            assert_eq!(info.address(), address);
        }
    }
}
