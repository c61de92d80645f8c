//! Every format against the disk that qemu-img made it from, and every bad input against its reason.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrovirt_disks::image::{FileSource, ImportError, Observer, Options, Source, Target, import};

/// Not a multiple of any cluster or block size.
const SIZE: usize = (9 << 20) + 512;
const DISK: u64 = 12 << 20;

struct Bench {
    dir: tempfile::TempDir,
    disk: Vec<u8>,
}

#[derive(Default)]
struct Notes {
    checkpoint: AtomicU64,
    done: AtomicU64,
}

impl Observer for Notes {
    fn progress(&self, done: u64, _: Option<u64>) {
        self.done.fetch_max(done, Ordering::Relaxed);
    }

    fn checkpoint(&self, offset: u64) {
        self.checkpoint.store(offset, Ordering::Relaxed);
    }
}

/// Hides that a file could be read anywhere.
struct OnlyStream(FileSource);

impl Source for OnlyStream {
    fn length(&self) -> Option<u64> {
        None
    }
    fn seekable(&self) -> bool {
        false
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        self.0.stream(from)
    }
}

/// Breaks off every stream after some bytes, as a server that dies.
struct Breaks {
    inner: FileSource,
    after: u64,
    read: AtomicU64,
}

impl Source for Breaks {
    fn length(&self) -> Option<u64> {
        self.inner.length()
    }
    fn seekable(&self) -> bool {
        true
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }
    fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        Ok(Box::new(Breaking { inner: self.inner.stream(from)?, source: self }))
    }
}

struct Breaking<'a> {
    inner: Box<dyn Read + Send + 'a>,
    source: &'a Breaks,
}

impl Read for Breaking<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.source.read.load(Ordering::Relaxed) >= self.source.after {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let read = self.inner.read(buffer)?;
        self.source.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Bench {
    /// A disk with text, noise and holes.
    fn new() -> Self {
        let mut disk = vec![0; SIZE];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for block in (0..SIZE / 4096).filter(|block| block % 7 != 3 && !(300..900).contains(block)) {
            for cell in disk[block * 4096..(block + 1) * 4096].chunks_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let bytes = if block % 2 == 0 { state.to_le_bytes() } else { *b"ferrovir" };
                cell.copy_from_slice(&bytes[..cell.len()]);
            }
        }
        disk[SIZE - 1] = 7;
        let bench = Self { dir: tempfile::tempdir().unwrap(), disk };
        fs::write(bench.path("disk.raw"), &bench.disk).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn qemu_img(&self, arguments: &[&str]) {
        let done = Command::new("qemu-img").args(arguments).current_dir(self.dir.path()).output().expect("qemu-img");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn convert(&self, format: &str, options: &[&str], name: &str) {
        let mut arguments = vec!["convert", "-f", "raw", "-O", format];
        arguments.extend(options);
        arguments.extend(["disk.raw", name]);
        self.qemu_img(&arguments);
    }

    fn import(&self, source: &dyn Source, options: &Options) -> Result<(), ImportError> {
        let target = Target::open(&self.path("target.img"), DISK)?;
        import(source, &target, options, &Notes::default())
    }

    fn import_file(&self, name: &str, options: &Options) -> Result<(), ImportError> {
        self.import(&FileSource::open(&self.path(name)).unwrap(), options)
    }

    fn check_target(&self, name: &str) {
        let found = fs::read(self.path("target.img")).unwrap();
        assert_eq!(found.len() as u64, DISK, "{name}");
        let wrong = found[..SIZE].iter().zip(&self.disk).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{name} differs");
        assert!(found[SIZE..].iter().all(|byte| *byte == 0), "{name} is not zero after its end");
        let blocks = fs::metadata(self.path("target.img")).unwrap().blocks() * 512;
        assert!(blocks < DISK - (2 << 20), "{name}: holes were filled, {blocks} bytes");
        fs::remove_file(self.path("target.img")).unwrap();
    }

    fn scratch(&self) -> Options {
        Options { scratch: Some(self.path("scratch")), ..Options::default() }
    }
}

fn compress(bench: &Bench, program: &str, from: &str, to: &str) {
    let out = File::create(bench.path(to)).unwrap();
    let done = Command::new(program).args(["-c", "-q"]).arg(bench.path(from)).stdout(out).status().expect(program);
    assert!(done.success());
}

#[test]
fn every_format_becomes_the_disk_it_was_made_from() {
    let bench = Bench::new();
    for (name, format, options) in [
        ("a.qcow2", "qcow2", &[][..]),
        ("b.qcow2", "qcow2", &["-c"]),
        ("c.qcow2", "qcow2", &["-o", "compat=0.10,cluster_size=4096"]),
        ("d.qcow2", "qcow2", &["-c", "-o", "compression_type=zstd"]),
        ("a.vmdk", "vmdk", &[]),
        ("b.vmdk", "vmdk", &["-o", "subformat=streamOptimized"]),
        ("a.vdi", "vdi", &[]),
        ("a.vhdx", "vhdx", &[]),
        ("b.vhdx", "vhdx", &["-o", "subformat=fixed"]),
    ] {
        bench.convert(format, options, name);
        bench.import_file(name, &Options::default()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        bench.check_target(name);
        let stream = OnlyStream(FileSource::open(&bench.path(name)).unwrap());
        bench.import(&stream, &bench.scratch()).unwrap_or_else(|error| panic!("{name} as a stream: {error:?}"));
        bench.check_target(name);
        assert!(!bench.path("scratch").exists(), "{name} left its scratch file");
    }
    bench.import_file("disk.raw", &Options::default()).unwrap();
    bench.check_target("disk.raw");
}

#[test]
fn compressed_images_are_opened_on_the_way() {
    let bench = Bench::new();
    bench.convert("qcow2", &[], "a.qcow2");
    for (program, suffix) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")] {
        for image in ["disk.raw", "a.qcow2"] {
            let name = format!("{image}.{suffix}");
            compress(&bench, program, image, &name);
            bench.import_file(&name, &bench.scratch()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            bench.check_target(&name);
        }
    }
}

#[test]
fn a_broken_transfer_goes_on_where_it_broke() {
    let bench = Bench::new();
    bench.convert("qcow2", &[], "a.qcow2");
    for name in ["disk.raw", "a.qcow2"] {
        let source =
            |after| Breaks { inner: FileSource::open(&bench.path(name)).unwrap(), after, read: AtomicU64::new(0) };
        let target = Target::open(&bench.path("target.img"), DISK).unwrap();
        let (first, notes) = (source(3 << 20), Notes::default());
        let error = import(&first, &target, &Options::default(), &notes).unwrap_err();
        assert!(error.is_transient(), "{name}: {error:?}");
        let resume_from = notes.checkpoint.load(Ordering::Relaxed);
        assert!(resume_from > 1 << 20, "{name} resumes from {resume_from}");
        let second = source(u64::MAX);
        let options = Options { resume_from, ..Options::default() };
        import(&second, &target, &options, &Notes::default()).unwrap();
        let (read, length) = (second.read.load(Ordering::Relaxed), second.length().unwrap());
        assert!(read <= length - resume_from + (1 << 20), "{name}: read {read} of {length} again");
        bench.check_target(name);
    }
}

#[test]
fn bad_images_are_refused_with_their_reason() {
    let bench = Bench::new();
    bench.convert("qcow2", &[], "good.qcow2");
    let good = fs::read(bench.path("good.qcow2")).unwrap();
    // Larger than the disk, in each way to say so.
    bench.qemu_img(&["create", "-q", "-f", "qcow2", "large.qcow2", "1G"]);
    bench.qemu_img(&["create", "-q", "-f", "raw", "large.raw", "1G"]);
    compress(&bench, "gzip", "large.raw", "bomb.gz");
    assert!(fs::metadata(bench.path("bomb.gz")).unwrap().len() < 2 << 20, "not much of a bomb");
    bench.qemu_img(&["create", "-q", "-f", "qcow2", "-b", "/etc/hostname", "-F", "raw", "-u", "backed.qcow2", "1M"]);
    bench.qemu_img(&["create", "-q", "-f", "qcow2", "-o", "data_file=outside.raw", "outside.qcow2", "1M"]);
    fs::write(bench.path("short.qcow2"), &good[..good.len() / 2]).unwrap();
    fs::write(bench.path("header.qcow2"), &good[..64]).unwrap();
    compress(&bench, "gzip", "disk.raw", "whole.gz");
    let whole = fs::read(bench.path("whole.gz")).unwrap();
    fs::write(bench.path("short.gz"), &whole[..whole.len() / 2]).unwrap();
    let mut wild = good.clone();
    wild[40..48].copy_from_slice(&(1_u64 << 40).to_be_bytes());
    fs::write(bench.path("wild.qcow2"), &wild).unwrap();
    let mut corrupt = good;
    corrupt[79] |= 2;
    fs::write(bench.path("corrupt.qcow2"), &corrupt).unwrap();
    for (name, reason) in [
        ("large.qcow2", "ImageTooLarge"),
        ("large.raw", "ImageTooLarge"),
        ("bomb.gz", "ImageTooLarge"),
        ("backed.qcow2", "BackingFile"),
        ("outside.qcow2", "BackingFile"),
        ("short.qcow2", "ImageTruncated"),
        ("header.qcow2", "ImageTruncated"),
        ("short.gz", "ImageTruncated"),
        ("wild.qcow2", "ImageTruncated"),
        ("corrupt.qcow2", "ImageDamaged"),
    ] {
        let error = bench.import_file(name, &bench.scratch()).unwrap_err();
        assert_eq!(error.reason(), reason, "{name}: {error}");
        assert!(!error.is_transient(), "{name}");
    }
    // What can be known beforehand is known before the first byte.
    for name in ["large.qcow2", "large.raw", "backed.qcow2", "short.qcow2"] {
        fs::write(bench.path("target.img"), b"untouched").unwrap();
        bench.import_file(name, &Options::default()).unwrap_err();
        assert_eq!(fs::read(bench.path("target.img")).unwrap(), b"untouched", "{name}");
    }
    let target = Target::open(&bench.path("target.img"), DISK).unwrap();
    target.discard(true).unwrap();
    assert!(!bench.path("target.img").exists());
}

#[test]
fn checksums_are_over_the_image_as_it_came() {
    let bench = Bench::new();
    bench.convert("qcow2", &["-c"], "a.qcow2");
    compress(&bench, "gzip", "disk.raw", "disk.gz");
    for name in ["disk.raw", "a.qcow2", "disk.gz"] {
        let sum = |program: &str| {
            let out = Command::new(program).arg(bench.path(name)).output().unwrap();
            String::from_utf8(out.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
        };
        for kind in ["sha256", "sha512"] {
            let right = format!("{kind}:{}", sum(&format!("{kind}sum")));
            let options = Options { checksum: Some(right.parse().unwrap()), ..Options::default() };
            bench.import_file(name, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
            bench.check_target(name);
            let wrong = right.replacen(':', ":0", 1);
            let wrong = &wrong[..wrong.len() - 1];
            let options = Options { checksum: Some(wrong.parse().unwrap()), ..Options::default() };
            let error = bench.import_file(name, &options).unwrap_err();
            assert_eq!(error.reason(), "ChecksumMismatch", "{name}: {error}");
        }
    }
    for bad in ["", "sha256", "md5:d41d8cd98f00b204e9800998ecf8427e", "sha256:xyz"] {
        assert!(bad.parse::<ferrovirt_disks::image::Checksum>().is_err(), "{bad}");
    }
}

/// An image in memory.
struct Memory(Vec<u8>);

impl Source for Memory {
    fn length(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
    fn seekable(&self) -> bool {
        true
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let until = from.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(self.0.get(from..until).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn stream(&self, from: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.0.len());
        Ok(Box::new(&self.0[from..]))
    }
}

/// Bytes of foreign origin never panic, whatever they say.
#[test]
fn noise_in_a_header_is_only_an_error() {
    let bench = Bench::new();
    File::options().write(true).open(bench.path("disk.raw")).unwrap().set_len(128 << 10).unwrap();
    for (name, format) in [("n.qcow2", "qcow2"), ("n.vmdk", "vmdk"), ("n.vdi", "vdi"), ("n.vhdx", "vhdx")] {
        bench.convert(format, &[], name);
        let mut image = Memory(fs::read(bench.path(name)).unwrap());
        let tables = [0, 64 << 10, 192 << 10, 2 << 20].map(|base| base..base + 512);
        for at in tables.into_iter().flatten().step_by(5).filter(|at| *at < image.0.len()).collect::<Vec<_>>() {
            for value in [0x00, 0x7f, 0xff] {
                let before = std::mem::replace(&mut image.0[at], value);
                let _ = bench.import(&image, &Options::default());
                image.0[at] = before;
            }
        }
    }
}
