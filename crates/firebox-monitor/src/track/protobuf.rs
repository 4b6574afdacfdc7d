//! Protocol Buffers as TensorBoard's files need them, and the records that they are stored in.
//!
//! Only writing, and only the wire types in use: varints, 64 and 32 bits, and bytes
//! (<https://protobuf.dev/programming-guides/encoding/>). Fields of value 0 are written too, which
//! readers allow.

/// A message being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    pub(crate) fn int(mut self, field: u32, value: u64) -> Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    pub(crate) fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn blob(mut self, field: u32, value: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    pub(crate) fn text(self, field: u32, value: &str) -> Self {
        self.blob(field, value.as_bytes())
    }

    pub(crate) fn message(self, field: u32, value: Self) -> Self {
        self.blob(field, &value.0)
    }

    /// Doubles, packed.
    pub(crate) fn doubles(self, field: u32, values: &[f64]) -> Self {
        let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.blob(field, &packed)
    }
}

/// A record of TensorFlow's record format: length, its checksum, data, its checksum.
pub(crate) fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend(length);
    out.extend(masked_checksum(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_checksum(data).to_le_bytes());
    out
}

/// CRC-32C, turned and shifted as TensorFlow's `record_writer.h` does.
fn masked_checksum(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_encoding_guide() {
        // The guide's own examples: field 1 = 150, field 2 = "testing".
        assert_eq!(Message::new().int(1, 150).bytes(), [0x08, 0x96, 0x01]);
        let text = [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67];
        assert_eq!(Message::new().text(2, "testing").bytes(), text);
        let inner = Message::new().int(1, 150);
        assert_eq!(Message::new().message(3, inner).bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(Message::new().float(2, 1.0).bytes(), [0x15, 0, 0, 0x80, 0x3f]);
        assert_eq!(Message::new().doubles(6, &[0.0]).bytes(), [0x32, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn records_carry_the_checksums_of_tensorflow() {
        // CRC-32C of "123456789" is e3069283 (RFC 3720); masked as TensorFlow does.
        let masked = 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8);
        assert_eq!(masked_checksum(b"123456789"), masked);
        let record = record(b"123456789");
        assert_eq!(record.len(), 8 + 4 + 9 + 4);
        assert_eq!(record[..8], 9u64.to_le_bytes());
        assert_eq!(record[21..], masked.to_le_bytes());
    }
}
