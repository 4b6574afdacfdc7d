//! A picture of few colours as a PNG file (ISO/IEC 15948), not compressed: a run has a handful of
//! them, of a hundred kilobytes.

use super::Picture;

/// Largest piece of data that a block that is not compressed holds (RFC 1951).
const BLOCK: usize = 65_535;

/// The bytes of a PNG file: one byte a pixel, an index into the palette.
pub(super) fn png(picture: &Picture) -> Vec<u8> {
    let Picture { width, height, palette, pixels, .. } = picture;
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = vec![];
    header.extend((*width as u32).to_be_bytes());
    header.extend((*height as u32).to_be_bytes());
    // Eight bits a pixel, indexed; deflate, adaptive filters, not interlaced.
    header.extend([8, 3, 0, 0, 0]);
    chunk(&mut out, b"IHDR", &header);
    chunk(&mut out, b"PLTE", palette.as_flattened());
    let mut rows = Vec::with_capacity((width + 1) * height);
    for row in pixels.chunks(*width) {
        // Each row begins with its filter: none.
        rows.push(0);
        rows.extend(row);
    }
    chunk(&mut out, b"IDAT", &stored(&rows));
    chunk(&mut out, b"IEND", &[]);
    out
}

fn chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend((data.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend(kind);
    out.extend(data);
    let checksum = crc32(&out[start..]);
    out.extend(checksum.to_be_bytes());
}

/// A zlib stream (RFC 1950) of blocks that are stored as they are.
fn stored(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let last = data.len().div_ceil(BLOCK).max(1) - 1;
    for (place, block) in data.chunks(BLOCK).enumerate() {
        out.push(u8::from(place == last));
        out.extend((block.len() as u16).to_le_bytes());
        out.extend((!(block.len() as u16)).to_le_bytes());
        out.extend(block);
    }
    out.extend(adler32(data).to_be_bytes());
    out
}

/// The checksum of chunks: the polynomial 0xedb88320, reflected (PNG specification, annex D).
fn crc32(data: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for byte in data {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            register = if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 };
        }
    }
    !register
}

/// The checksum of a zlib stream (RFC 1950).
fn adler32(data: &[u8]) -> u32 {
    const PRIME: u32 = 65_521;
    let (mut a, mut b) = (1, 0);
    for byte in data {
        a = (a + u32::from(*byte)) % PRIME;
        b = (b + a) % PRIME;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standards_check_values() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }

    #[test]
    fn long_data_is_stored_in_blocks_of_which_the_last_is_marked() {
        let data = vec![7u8; BLOCK + 10];
        let out = stored(&data);
        assert_eq!(out.len(), 2 + 5 + BLOCK + 5 + 10 + 4);
        assert_eq!(out[2..7], [0, 0xff, 0xff, 0, 0]);
        assert_eq!(out[2 + 5 + BLOCK..][..5], [1, 10, 0, 0xf5, 0xff]);
    }

    #[test]
    fn a_file_has_its_header_its_palette_and_a_row_filter() {
        let picture = Picture {
            name: "p".to_owned(),
            width: 2,
            height: 1,
            palette: vec![[255, 255, 255], [1, 2, 3]],
            pixels: vec![0, 1],
        };
        let file = png(&picture);
        assert_eq!(file[..16], *b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
        assert_eq!(file[16..29], [0, 0, 0, 2, 0, 0, 0, 1, 8, 3, 0, 0, 0]);
        assert!(
            file.windows(10).any(|part| part == [b'P', b'L', b'T', b'E', 255, 255, 255, 1, 2, 3])
        );
        assert!(file.windows(3).any(|part| part == [0, 0, 1]) && file.ends_with(b"IEND\xaeB`\x82"));
    }
}
