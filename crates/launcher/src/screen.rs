//! The guest's screen as PNG. libvirt gives a portable pixmap (older) or PNG (newer QEMU).

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];

#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    #[error("the screen came as {0}, which is not known here")]
    Format(String),
    #[error("the screen's pixmap is damaged")]
    Damaged,
    #[error("cannot compress the screen")]
    Compress(#[from] io::Error),
}

pub fn png(mime: &str, bytes: Vec<u8>) -> Result<Vec<u8>, ScreenError> {
    match mime {
        "image/png" => Ok(bytes),
        "image/x-portable-pixmap" => from_pixmap(&bytes),
        other => Err(ScreenError::Format(other.to_owned())),
    }
}

/// `P6 <width> <height> 255 ` and three bytes a pixel.
fn from_pixmap(bytes: &[u8]) -> Result<Vec<u8>, ScreenError> {
    let mut rest = bytes;
    let (magic, width, height, most) = (word(&mut rest), word(&mut rest), word(&mut rest), word(&mut rest));
    let number = |text: &str| text.parse::<u32>().map_err(|_| ScreenError::Damaged);
    let (width, height) = (number(&width)?, number(&height)?);
    let line = width as usize * 3;
    if magic != "P6" || most != "255" || line == 0 || rest.len() < line * height as usize {
        return Err(ScreenError::Damaged);
    }
    let mut data = ZlibEncoder::new(Vec::new(), Compression::fast());
    for row in rest.chunks_exact(line).take(height as usize) {
        // No filter: screens are flat areas, and deflate finds those.
        data.write_all(&[0])?;
        data.write_all(row)?;
    }
    let mut header = Vec::with_capacity(13);
    header.extend_from_slice(&width.to_be_bytes());
    header.extend_from_slice(&height.to_be_bytes());
    // Eight bits, true colour, and the only methods there are.
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    let mut png = SIGNATURE.to_vec();
    chunk(&mut png, *b"IHDR", &header);
    chunk(&mut png, *b"IDAT", &data.finish()?);
    chunk(&mut png, *b"IEND", &[]);
    Ok(png)
}

/// Takes a word and the one blank after it. QEMU writes no comments.
fn word(rest: &mut &[u8]) -> String {
    let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
    let (word, after) = rest.split_at(end);
    *rest = after.get(1..).unwrap_or_default();
    String::from_utf8_lossy(word).into_owned()
}

fn chunk(png: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    png.extend_from_slice(&length.to_be_bytes());
    let mut checksum = flate2::Crc::new();
    for part in [kind.as_slice(), data] {
        checksum.update(part);
        png.extend_from_slice(part);
    }
    png.extend_from_slice(&checksum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn pixels_survive() {
        let pixels = [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7];
        let mut pixmap = b"P6\n2 2\n255\n".to_vec();
        pixmap.extend_from_slice(&pixels);
        let made = png("image/x-portable-pixmap", pixmap).unwrap();
        assert_eq!(made[..8], SIGNATURE);
        assert_eq!(made[16..24], [0, 0, 0, 2, 0, 0, 0, 2]);
        // The checksum of an empty IEND is well known.
        assert_eq!(made[made.len() - 8..], [b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82]);
        let start = 33 + 8;
        let mut raw = vec![];
        flate2::read::ZlibDecoder::new(&made[start..]).read_to_end(&mut raw).unwrap();
        assert_eq!(raw, [&[0], &pixels[..6], &[0], &pixels[6..]].concat());
    }

    #[test]
    fn damage_is_told() {
        for bad in ["", "P5 1 1 255 abc", "P6 2 2 255 abc", "P6 -1 2 255 abc", "P6 0 0 255 "] {
            assert!(matches!(png("image/x-portable-pixmap", bad.into()), Err(ScreenError::Damaged)), "{bad}");
        }
        assert!(matches!(png("image/gif", vec![]), Err(ScreenError::Format(_))));
    }
}
