//! From any image to a raw disk.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::str::FromStr;

use sha2::{Digest as _, Sha256, Sha512};

use super::detect::{self, Compression, Format, HEAD};
use super::layout::{Coding, Extent, Extents, Layout};
use super::qcow2::Qcow2;
use super::stream::{Meter, Target, Window};
use super::vdi::Vdi;
use super::vhdx::Vhdx;
use super::vmdk::Vmdk;
use super::{FileSource, ImportError, Observer, Source};

/// Extents that are held at a time; an image with more of them is read in several passes.
const BATCH: usize = 1 << 20;
const PIECE: usize = 1 << 20;
/// Room for the tables of a mapped image that is put down first.
const OVERHEAD: u64 = 64 << 20;

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub checksum: Option<Checksum>,
    /// What an earlier attempt reported as its last checkpoint; what is before it is in the target.
    pub resume_from: u64,
    /// The source is a disk already, whatever its content looks like: a guest decides that.
    pub verbatim: bool,
    /// A file for an image that cannot be read from a stream alone. Removed afterwards.
    pub scratch: Option<PathBuf>,
}

/// A digest that the whole image must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    kind: Kind,
    hex: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sha256,
    Sha512,
}

impl FromStr for Checksum {
    type Err = ImportError;

    fn from_str(text: &str) -> Result<Self, ImportError> {
        let bad = || ImportError::BadChecksum(text.to_owned());
        let (kind, hex) = text.split_once(':').ok_or_else(bad)?;
        let (kind, length) = match kind.to_ascii_lowercase().as_str() {
            "sha256" => (Kind::Sha256, 64),
            "sha512" => (Kind::Sha512, 128),
            _ => return Err(bad()),
        };
        let hex = hex.trim().to_ascii_lowercase();
        if hex.len() != length || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        Ok(Self { kind, hex })
    }
}

pub(super) struct Hasher {
    state: State,
    expected: Checksum,
}

enum State {
    Sha256(Box<Sha256>),
    Sha512(Box<Sha512>),
}

impl Hasher {
    fn new(expected: &Checksum) -> Self {
        let state = match expected.kind {
            Kind::Sha256 => State::Sha256(Box::default()),
            Kind::Sha512 => State::Sha512(Box::default()),
        };
        Self { state, expected: expected.clone() }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    pub fn check(self) -> Result<(), ImportError> {
        let (kind, found) = match self.state {
            State::Sha256(state) => ("sha256", hex(&state.finalize())),
            State::Sha512(state) => ("sha512", hex(&state.finalize())),
        };
        if found == self.expected.hex {
            return Ok(());
        }
        Err(ImportError::Checksum { kind, found, expected: self.expected.hex })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fills the target with the disk that the image holds. The target is made zero first, unless an attempt is resumed.
/// After an error the target holds a part; whether to resume or to discard is the caller's decision.
pub fn import(
    source: &dyn Source,
    target: &Target,
    options: &Options,
    observer: &dyn Observer,
) -> Result<(), ImportError> {
    // The digest of what an earlier attempt read is not known any more.
    let resume_from = if options.checksum.is_some() { 0 } else { options.resume_from };
    let hasher = || options.checksum.as_ref().map(Hasher::new);
    let imported = if source.seekable() {
        let length = source.length().unwrap_or(HEAD as u64).min(HEAD as u64);
        let mut head = vec![0; usize::try_from(length).unwrap_or_default()];
        source.read_at(0, &mut head).map_err(|error| early_end(source, error))?;
        let known = match options.verbatim {
            true => (None, Format::Raw),
            false => (detect::compression(&head), detect::format(&head)),
        };
        match known {
            (None, Format::Raw) if !options.verbatim && detect::foreign(&head).is_some() => Err(foreign(&head)),
            (None, Format::Raw) => raw(source, target, resume_from, hasher(), observer),
            (None, format) => {
                let layout = open(source, format, &head)?;
                mapped(source, layout, target, resume_from, hasher(), observer)
            }
            (Some(_), _) => {
                let mut meter = Meter::open(source, 0, hasher(), observer)?;
                streamed(&mut meter, target, options)?;
                meter.finish()
            }
        }
    } else {
        let mut meter = Meter::open(source, 0, hasher(), observer)?;
        streamed(&mut meter, target, options)?;
        meter.finish()
    };
    imported?;
    target.sync()
}

fn foreign(head: &[u8]) -> ImportError {
    ImportError::Foreign(detect::foreign(head).unwrap_or_default())
}

/// Before the first byte is written: does the source have as much as it says? Nobody else would ask for what is behind the last part.
fn check_end(source: &dyn Source) -> Result<(), ImportError> {
    let Some(last) = source.length().filter(|_| source.seekable()).and_then(|length| length.checked_sub(1)) else {
        return Ok(());
    };
    source.read_at(last, &mut [0]).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ImportError::Short { announced: last + 1 },
        _ => ImportError::Read(error),
    })
}

fn early_end(source: &dyn Source, error: io::Error) -> ImportError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            ImportError::Truncated { found: 0, expected: source.length().unwrap_or(HEAD as u64) }
        }
        _ => ImportError::Read(error),
    }
}

fn open(source: &dyn Source, format: Format, head: &[u8]) -> Result<Box<dyn Layout>, ImportError> {
    Ok(match format {
        Format::Qcow2 => Box::new(Qcow2::open(source, head)?),
        Format::Vmdk => Box::new(Vmdk::open(source, head)?),
        Format::Vdi => Box::new(Vdi::open(head)?),
        Format::Vhdx | Format::Raw => Box::new(Vhdx::open(source)?),
    })
}

fn raw(
    source: &dyn Source,
    target: &Target,
    resume_from: u64,
    hasher: Option<Hasher>,
    observer: &dyn Observer,
) -> Result<(), ImportError> {
    if let Some(image) = source.length().filter(|length| *length > target.size()) {
        return Err(ImportError::TooLarge { image, disk: target.size() });
    }
    if resume_from == 0 {
        target.clear()?;
    }
    let mut meter = Meter::open(source, resume_from, hasher, observer)?;
    copy(&mut meter, resume_from, target, |reader, error| reader.failure(error), |at| observer.checkpoint(at))?;
    meter.finish()
}

/// An image that can be read once, from front to back.
fn streamed(meter: &mut Meter<'_>, target: &Target, options: &Options) -> Result<(), ImportError> {
    let head = take_head(meter).map_err(|error| meter.failure(error))?;
    let compression = detect::compression(&head);
    let total = compression.is_none().then_some(()).and_then(|()| meter.total());
    if let Some(image) = total.filter(|total| *total > target.size() && detect::format(&head) == Format::Raw) {
        return Err(ImportError::TooLarge { image, disk: target.size() });
    }
    let outcome = decode(compression, head.chain(&mut *meter), target, options);
    outcome.map_err(|failure| match failure {
        Failure::Import(error) => error,
        Failure::Stream(error) => meter.failure(error),
    })
}

enum Failure {
    Import(ImportError),
    /// Of the stream below the decoder.
    Stream(io::Error),
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        Self::Import(error)
    }
}

fn decode(
    compression: Option<Compression>,
    stream: impl Read,
    target: &Target,
    options: &Options,
) -> Result<(), Failure> {
    let mut plain: Box<dyn Read + '_> = match compression {
        None => Box::new(stream),
        Some(Compression::Gzip) => Box::new(flate2::read::MultiGzDecoder::new(io::BufReader::new(stream))),
        Some(Compression::Xz) => Box::new(lzma_rust2::XzReader::new(io::BufReader::new(stream), true)),
        Some(Compression::Zstd) => {
            let invalid = |error: ruzstd::decoding::errors::FrameDecoderError| {
                Failure::Stream(io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
            };
            Box::new(ruzstd::decoding::StreamingDecoder::new(io::BufReader::new(stream)).map_err(invalid)?)
        }
    };
    let head = take_head(&mut plain).map_err(Failure::Stream)?;
    let format = detect::format(&head);
    let mut whole = head.as_slice().chain(&mut plain);
    if format == Format::Raw {
        if detect::foreign(&head).is_some() {
            return Err(foreign(&head).into());
        }
        target.clear()?;
        return copy(&mut whole, 0, target, |_, error| Failure::Stream(error), |_| {}).map(drop);
    }
    // Its tables may come last, so it is put down first. It cannot grow beyond what its disk could need.
    let path = options.scratch.as_ref().ok_or(Failure::Import(ImportError::NoScratch(format.name())))?;
    let wrap = |source| Failure::Import(ImportError::Write { path: path.clone(), source });
    let limit = target.size().saturating_add(OVERHEAD);
    let file = File::create(path).map_err(wrap)?;
    let spooled = spool(&mut whole, file, limit, path);
    let done = spooled.and_then(|()| {
        let source = FileSource::open(path).map_err(wrap)?;
        let layout = open(&source, format, &head)?;
        Ok(mapped(&source, layout, target, 0, None, &Silent)?)
    });
    fs::remove_file(path).map_err(wrap)?;
    done
}

fn spool(stream: &mut dyn Read, file: File, limit: u64, path: &std::path::Path) -> Result<(), Failure> {
    let mut buffer = vec![0; PIECE];
    let (mut at, mut file) = (0_u64, file);
    loop {
        let read = stream.read(&mut buffer).map_err(Failure::Stream)?;
        if read == 0 {
            return Ok(());
        }
        at += read as u64;
        if at > limit {
            return Err(ImportError::Overflow { disk: limit }.into());
        }
        let wrap = |source| Failure::Import(ImportError::Write { path: path.to_owned(), source });
        io::Write::write_all(&mut file, &buffer[..read]).map_err(wrap)?;
    }
}

/// The pass from scratch to target has no bytes of the source left to tell of.
struct Silent;

impl Observer for Silent {
    fn progress(&self, _: u64, _: Option<u64>) {}
}

fn copy<R: Read, E: From<ImportError>>(
    reader: &mut R,
    from: u64,
    target: &Target,
    failed: impl Fn(&R, io::Error) -> E,
    mut checkpoint: impl FnMut(u64),
) -> Result<u64, E> {
    let mut buffer = vec![0; PIECE];
    let mut at = from;
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match reader.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(reader, error)),
            }
        }
        if filled == 0 {
            return Ok(at);
        }
        if at + filled as u64 > target.size() {
            return Err(ImportError::Overflow { disk: target.size() }.into());
        }
        target.write(at, &buffer[..filled])?;
        at += filled as u64;
        checkpoint(at);
    }
}

fn mapped(
    source: &dyn Source,
    mut layout: Box<dyn Layout>,
    target: &Target,
    resume_from: u64,
    hasher: Option<Hasher>,
    observer: &dyn Observer,
) -> Result<(), ImportError> {
    let size = layout.virtual_size();
    if size > target.size() {
        return Err(ImportError::TooLarge { image: size, disk: target.size() });
    }
    check_end(source)?;
    let unit = layout.unit();
    let mut window = Window::new(source, hasher, observer);
    let mut decoder = Decoder { unit, plain: Vec::new() };
    for pass in 0.. {
        let mut extents = Extents::default();
        let mut more = true;
        while more && extents.list.len() < BATCH {
            more = layout.next_table(source, &mut extents)?;
        }
        check_places(source, &extents, unit)?;
        // Offsets of a later pass would be mistaken for those of the first.
        let alone = pass == 0 && !more;
        let resume_from = if alone { resume_from } else { 0 };
        if pass == 0 && resume_from == 0 {
            target.clear()?;
        }
        extents.list.sort_unstable_by_key(|extent| extent.source);
        for extent in extents.list.iter().filter(|extent| extent.source >= resume_from) {
            if alone {
                observer.checkpoint(extent.source);
            }
            write_extent(&mut window, &mut decoder, extent, size, target)?;
        }
        if !more {
            break;
        }
    }
    window.finish()
}

/// Before the first byte is written: is all that the tables name in the image?
fn check_places(source: &dyn Source, extents: &Extents, unit: usize) -> Result<(), ImportError> {
    let Some(length) = source.length() else { return Ok(()) };
    // The last unit of an image may be cut short; what is missing of it is zero.
    let limit = length.saturating_add(unit as u64);
    for extent in &extents.list {
        let end = extent.source.saturating_add(extent.length);
        if extent.source >= length || end > limit {
            return Err(ImportError::Truncated { found: length, expected: end });
        }
    }
    Ok(())
}

fn write_extent(
    window: &mut Window<'_>,
    decoder: &mut Decoder,
    extent: &Extent,
    size: u64,
    target: &Target,
) -> Result<(), ImportError> {
    if extent.coding == Coding::Plain {
        let mut done = 0;
        while done < extent.length {
            let length = usize::try_from(extent.length - done).unwrap_or(PIECE).min(PIECE);
            let piece = window.get(extent.source + done, length)?;
            if piece.is_empty() {
                return Ok(());
            }
            target.write(extent.guest + done, piece)?;
            done += piece.len() as u64;
        }
        return Ok(());
    }
    let mut length = usize::try_from(extent.length).unwrap_or(usize::MAX);
    if extent.coding == Coding::Grain {
        let marker = window.get(extent.source, length)?;
        let inner = super::layout::le32(marker, 8) as usize;
        if inner > 2 * decoder.unit + 1024 {
            return Err(ImportError::Damaged(format!("a grain of {inner} bytes")));
        }
        length += inner;
    }
    let coded = window.get(extent.source, length)?;
    let plain = decoder.decode(extent.coding, coded).map_err(|what| {
        ImportError::Damaged(format!("the compressed part at {} does not decompress ({what})", extent.source))
    })?;
    let room = usize::try_from(size - extent.guest).unwrap_or(usize::MAX).min(plain.len());
    target.write(extent.guest, &plain[..room])
}

struct Decoder {
    unit: usize,
    plain: Vec<u8>,
}

impl Decoder {
    fn decode(&mut self, coding: Coding, coded: &[u8]) -> Result<&[u8], String> {
        self.plain.clear();
        self.plain.resize(self.unit, 0);
        let mut reader: Box<dyn Read + '_> = match coding {
            Coding::Deflate => Box::new(flate2::read::DeflateDecoder::new(coded)),
            Coding::Grain => Box::new(flate2::read::ZlibDecoder::new(coded.get(12..).unwrap_or_default())),
            Coding::Zstd => {
                Box::new(ruzstd::decoding::StreamingDecoder::new(coded).map_err(|error| error.to_string())?)
            }
            Coding::Plain => Box::new(coded),
        };
        let mut filled = 0;
        while filled < self.unit {
            match reader.read(&mut self.plain[filled..]).map_err(|error| error.to_string())? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(&self.plain[..filled])
    }
}

fn take_head(reader: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD);
    reader.take(HEAD as u64).read_to_end(&mut head)?;
    Ok(head)
}
