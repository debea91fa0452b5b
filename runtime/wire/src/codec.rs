//! Checked reading and writing of bytes.
//!
//! A reader returns what is there, and `Truncated` for the rest. It never allocates, so no length on the
//! wire can cost memory. A writer fills the caller's buffer, and returns `Full` at its end. All numbers are
//! little endian.

/// The bytes ended before the value, or the value is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes ended before the value.
    Truncated,
    /// The value is not allowed.
    Value,
}

/// Reads values from bytes, one after the other. Every method fails if the bytes end before its value.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of all these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The rest of the bytes.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// The next `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
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

    /// The next number.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// The next byte, which is 0 or 1.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value),
        }
    }

    /// The next number.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next number.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next number.
    pub fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    /// The next number.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A length byte, then that many bytes.
    pub fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.u8()?);
        self.bytes(length)
    }
}

/// The buffer is full; what was written before stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Writes values into a buffer, one after the other. Every method fails if there is no room for its value.
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Writer<'a> {
    /// A writer into all of this buffer.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    /// Number of bytes written.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Takes back everything after the first `used` bytes.
    pub fn rewind(&mut self, used: usize) {
        debug_assert!(used <= self.used);
        self.used = used;
    }

    /// Number of bytes left.
    pub fn room(&self) -> usize {
        self.buffer.len() - self.used
    }

    /// Overwrites a byte written before, such as a flag that was not known then.
    pub fn patch_u8(&mut self, at: usize, value: u8) {
        self.buffer[at] = value;
    }

    /// Overwrites two bytes written before, such as a count that was not known then.
    pub fn patch_u16(&mut self, at: usize, value: u16) {
        self.buffer[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Writes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let end = self.used + bytes.len();
        if end > self.buffer.len() {
            return Err(Full);
        }
        self.buffer[self.used..end].copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }

    /// Writes a number.
    pub fn u8(&mut self, value: u8) -> Result<(), Full> {
        self.bytes(&[value])
    }

    /// Writes a number.
    pub fn u16(&mut self, value: u16) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    /// Writes a number.
    pub fn u32(&mut self, value: u32) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    /// Writes a number.
    pub fn i32(&mut self, value: i32) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    /// Writes a number.
    pub fn u64(&mut self, value: u64) -> Result<(), Full> {
        self.bytes(&value.to_le_bytes())
    }

    /// A length byte, then the bytes. The caller has checked that there are at most 255.
    pub fn short(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let length = u8::try_from(bytes.len()).map_err(|_| Full)?;
        self.u8(length)?;
        self.bytes(bytes)
    }
}
