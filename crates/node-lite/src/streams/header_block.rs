//! Header blocks of SPDY: names and values, compressed with zlib and a dictionary that both sides know.
//!
//! We read what any compressor makes, and write the same format without compressing: our answers have no headers.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::spdy::SpdyError;

/// Names that the dictionary has with their length in front, and the text after them.
const NAMES: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow \
    authorization cache-control connection content-base content-encoding content-language content-length content-location \
    content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match if-range \
    if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer \
    retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get status \
    200_OK version HTTP/1.1 url public set-cookie keep-alive origin";
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
    Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 \
    Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, \
    Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,\
    text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// Of one block, when it is unpacked. Ours have a hundred bytes.
const MOST: usize = 16 << 10;
const WINDOW: usize = 32 << 10;
/// The first bytes of a zlib stream with a dictionary: method, flags, and the dictionary's check sum.
const ZLIB: [u8; 2] = [0x78, 0xbb];

fn dictionary() -> Vec<u8> {
    let mut out = vec![];
    for name in NAMES.split(' ').map(|name| name.replace('_', " ")) {
        out.extend_from_slice(&(name.len() as u32).to_be_bytes());
        out.extend_from_slice(name.as_bytes());
    }
    out.extend_from_slice(TEXT.as_bytes());
    out
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (a + b) % 65521)
    });
    (b << 16) | a
}

/// Reads the blocks of one connection, in their order.
pub(super) struct Reader {
    state: Box<DecompressorOxide>,
    window: Vec<u8>,
    position: usize,
    begun: bool,
}

impl Reader {
    pub fn new() -> Self {
        Self { state: Box::default(), window: vec![0; WINDOW], position: 0, begun: false }
    }

    /// Names in lower case, and values.
    pub fn read(&mut self, block: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
        parse(&self.inflate(block)?).ok_or(SpdyError::Headers)
    }

    fn inflate(&mut self, block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut input = block;
        if !std::mem::replace(&mut self.begun, true) {
            let known = dictionary();
            let (head, rest) = input.split_at_checked(6).ok_or(SpdyError::Headers)?;
            if head.get(2..) != Some(&adler32(&known).to_be_bytes()) {
                return Err(SpdyError::Headers);
            }
            // What was said before the beginning, as far as back references are concerned.
            self.window.get_mut(..known.len()).ok_or(SpdyError::Headers)?.copy_from_slice(&known);
            (self.position, input) = (known.len(), rest);
        }
        let mut out = vec![];
        loop {
            let flags = TINFL_FLAG_HAS_MORE_INPUT;
            let (status, read, written) = decompress(&mut self.state, input, &mut self.window, self.position, flags);
            out.extend_from_slice(self.window.get(self.position..self.position + written).unwrap_or_default());
            self.position = (self.position + written) % WINDOW;
            input = input.get(read..).unwrap_or_default();
            match status {
                _ if out.len() > MOST => return Err(SpdyError::Headers),
                TINFLStatus::NeedsMoreInput if input.is_empty() => return Ok(out),
                TINFLStatus::HasMoreOutput => {}
                _ => return Err(SpdyError::Headers),
            }
        }
    }
}

fn parse(mut bytes: &[u8]) -> Option<Vec<(String, String)>> {
    fn number(bytes: &mut &[u8]) -> Option<usize> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        usize::try_from(u32::from_be_bytes(*head)).ok()
    }
    fn text(bytes: &mut &[u8]) -> Option<String> {
        let length = number(bytes)?;
        let (text, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }
    let count = number(&mut bytes)?;
    let mut out = vec![];
    for _ in 0..count {
        out.push((text(&mut bytes)?.to_ascii_lowercase(), text(&mut bytes)?));
    }
    Some(out)
}

/// Writes blocks without headers.
#[derive(Default)]
pub(super) struct Writer {
    begun: bool,
}

impl Writer {
    pub fn empty(&mut self) -> Vec<u8> {
        let mut out = vec![];
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(&ZLIB);
            out.extend_from_slice(&adler32(&dictionary()).to_be_bytes());
        }
        // A stored block with the number zero, and an empty one by which a reader knows that nothing more is to come.
        out.extend_from_slice(&[0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks of one connection, as zlib packs them.
    const PACKED: [&[u8]; 2] = [
        b"\x78\xf9\xe3\xc6\xa7\xc2\x02\xe5\x0e\x70\x3a\x2b\x29\x4a\x4d\xcc\x85\x16\x25\xac\xa9\xa0\x80\xc6\x52\xc6\x40\x13\x30\x00\x00\x00\xff\xff",
        b"\x02\xa5\x54\x0c\x4d\xa0\xf2\x27\x11\x52\x94\x17\x81\x73\x8d\x85\x81\x85\x01\x90\xe6\x2c\x82\x44\x7d\x26\x28\x4b\x30\x1a\x00\x00\x00\x00\xff\xff",
    ];

    #[test]
    fn the_dictionary_is_the_one_of_the_protocol() {
        let dictionary = dictionary();
        assert_eq!((dictionary.len(), adler32(&dictionary)), (1423, 0xe3c6_a7c2));
        assert_eq!(u16::from_be_bytes(ZLIB) % 31, 0);
    }

    /// A block as we would write it with headers in it.
    fn stored(headers: &[(&str, &str)], first: bool) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        let mut out = vec![];
        if first {
            out.extend_from_slice(&ZLIB);
            out.extend_from_slice(&adler32(&dictionary()).to_be_bytes());
        }
        let length = plain.len() as u16;
        out.push(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(&plain);
        out.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
        out
    }

    #[test]
    fn blocks_are_read_one_after_the_other() {
        let mut reader = Reader::new();
        let wanted = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        let first = reader.read(&stored(&[("StreamType", "error"), ("port", "80")], true)).unwrap();
        assert_eq!(first, wanted(&[("streamtype", "error"), ("port", "80")]));
        // Enough to go around the window more than once.
        let long = "x".repeat(10_000);
        for _ in 0..10 {
            assert_eq!(reader.read(&stored(&[("a", &long)], false)).unwrap(), wanted(&[("a", &long)]));
        }
        let ours = Writer::default().empty();
        assert_eq!(Reader::new().read(&ours).unwrap(), []);
    }

    #[test]
    fn what_zlib_packs_is_read() {
        let mut reader = Reader::new();
        let [first, second] = PACKED.map(|block| reader.read(block).unwrap());
        let shown = |pairs: Vec<(String, String)>| pairs.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>();
        assert_eq!(shown(first), ["streamtype=error", "content-type=200 OK"]);
        assert_eq!(shown(second), ["streamtype=data", "port=8080", "requestid=0"]);
    }

    #[test]
    fn nonsense_is_refused() {
        let huge = "x".repeat(MOST + 1);
        for bad in [
            vec![],
            vec![0x78, 0xbb, 1, 2, 3, 4, 0],
            stored(&[("a", &huge)], true),
            stored(&[], false),
            [stored(&[], true), vec![0xff; 100]].concat(),
            // Claims more headers than there are.
            {
                let mut block = stored(&[("a", "b")], true);
                block[11..15].copy_from_slice(&[0xff; 4]);
                block
            },
        ] {
            assert!(Reader::new().read(&bad).is_err(), "{bad:?}");
        }
    }
}
