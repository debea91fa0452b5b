//! Checked reading and writing of bytes.
//!
//! A reader returns what is there, and `Truncated` for the rest. It never allocates, so no length on the
//! wire can cost memory. A writer fills the caller's buffer, and returns `Full` at its end. All numbers are
//! little endian.

/// The bytes ended before the value, or the value is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Truncated,
    Value,
}

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The rest of the bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        if length > self.rest.len() {
            return Err(Malformed::Truncated);
        }
        let (head, tail) = self.rest.split_at(length);
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value),
        }
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A length byte, then that many bytes.
    pub(crate) fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.u8()?);
        self.bytes(length)
    }
}

/// The buffer is full; what was written before stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Takes back everything after the first `used` bytes.
    pub(crate) fn rewind(&mut self, used: usize) {
        debug_assert!(used <= self.used);
        self.used = used;
    }

    /// Number of bytes left.
    pub(crate) fn room(&self) -> usize {
        self.buffer.len() - self.used
    }

    /// Overwrites a byte written before, such as a flag that was not known then.
    pub(crate) fn patch_u8(&mut self, at: usize, value: u8) {
        self.buffer[at] = value;
    }

    /// Overwrites two bytes written before, such as a count that was not known then.
    pub(crate) fn patch_u16(&mut self, at: usize, value: u16) {
        self.buffer[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let end = self.used + bytes.len();
        if end > self.buffer.len() {
            return Err(Full);
        }
        self.buffer[self.used..end].copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }

    pub(crate) fn u8(&mut self, value: u8) -> Result<(), Full> {
        self.bytes(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn i32(&mut self, value: i32) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    /// A length byte, then the bytes. The caller has checked that there are at most 255.
    pub(crate) fn short(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let length = u8::try_from(bytes.len()).map_err(|_| Full)?;
        self.u8(length)?;
        self.bytes(bytes)
    }
}
