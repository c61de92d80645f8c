//! An ISO 9660 writer for small data disks: cloud-init's `cidata` and `config-2`, sysprep, config maps and secrets.
//!
//! Every volume carries the names three times, because its readers differ: upper-case 8.3 names (plain ISO 9660), Rock Ridge names with
//! POSIX modes (what Linux prefers) and Joliet names (what Windows reads). The same input gives the same bytes, so that a restarted
//! launcher can write the file again without changing the disk under a guest.
//!
//! ```text
//! sector 16  primary descriptor   17  Joliet descriptor   18  terminator
//!        19  path tables: primary little/big endian, Joliet little/big endian
//!            primary directories (with Rock Ridge), Joliet directories
//!            Rock Ridge continuation area (names too long for their record)
//!            file contents, shared by both hierarchies
//! ```

mod names;
mod tree;

use std::io::Write;
use std::path::{Path, PathBuf};

use names::{Hierarchy, Names};
use tree::Tree;

const SECTOR: usize = 2048;
/// Where the descriptors start; the sectors before belong to boot loaders.
const FIRST_DESCRIPTOR: u32 = 16;
/// The volume is padded to this many sectors: kernels read ahead, and emulated drives are happier with round sizes.
const ROUND_TO: u32 = 32;
/// One fixed time for everything (1980-01-01): the contents decide the bytes, not the clock.
const RECORD_DATE: [u8; 7] = [80, 1, 1, 0, 0, 0, 0];
const VOLUME_DATE: &[u8; 17] = b"1980010100000000\0";
const NO_DATE: &[u8; 17] = b"0000000000000000\0";

#[derive(Debug, thiserror::Error)]
pub enum IsoError {
    #[error("volume label {0:?} must be 1 to 32 printable ASCII characters")]
    Label(String),
    #[error("path {0:?} is not a relative path of plain names")]
    Path(String),
    #[error("path {0:?} appears twice, or once as a file and once as a directory")]
    Duplicate(String),
    #[error("a name in {0:?} is longer than 255 bytes")]
    NameTooLong(String),
    #[error("file {path:?} of {size} bytes does not fit an ISO 9660 volume")]
    TooBig { path: String, size: u64 },
    #[error("cannot write {path}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Writes a volume with these files. Paths are relative and may have directories (`openstack/latest/user_data`).
/// The file appears whole or not at all.
pub fn write_iso(path: &Path, label: &str, files: &[(String, Vec<u8>)]) -> Result<(), IsoError> {
    let image = build_iso(label, files)?;
    let wrap = |source| IsoError::Write { path: path.to_path_buf(), source };
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = PathBuf::from(partial);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(&image)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&partial);
        wrap(e)
    })
}

/// The bytes that [`write_iso`] writes.
pub fn build_iso(label: &str, files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, IsoError> {
    if label.is_empty() || label.len() > 32 || !label.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Err(IsoError::Label(label.to_string()));
    }
    let tree = Tree::new(files)?;
    let primary = Names::new(&tree, Hierarchy::Primary);
    let joliet = Names::new(&tree, Hierarchy::Joliet);

    let mut layout = Layout::new(&tree, &primary, &joliet);
    let mut image = vec![0u8; FIRST_DESCRIPTOR as usize * SECTOR];
    image.extend(descriptor(&layout, &primary, &layout.primary, label));
    image.extend(descriptor(&layout, &joliet, &layout.joliet, label));
    let mut terminator = vec![0u8; SECTOR];
    terminator[..7].copy_from_slice(b"\xffCD001\x01");
    image.extend(terminator);

    for (names, place) in [(&primary, &layout.primary), (&joliet, &layout.joliet)] {
        for endian in [Endian::Little, Endian::Big] {
            image.extend(path_table(&tree, names, place, endian));
            pad(&mut image);
        }
    }
    for (names, place) in [(&primary, &layout.primary), (&joliet, &layout.joliet)] {
        for &dir in &names.directories {
            image.extend(directory(&tree, names, place, &layout, dir));
        }
    }
    image.append(&mut layout.continuation);
    for node in tree.files() {
        image.extend_from_slice(tree.data(node));
        pad(&mut image);
    }
    image.resize(layout.sectors as usize * SECTOR, 0);
    Ok(image)
}

/// Where the directories and path tables of one hierarchy are.
struct Place {
    path_table_size: u32,
    path_table_little: u32,
    path_table_big: u32,
    /// By node: (sector, bytes); zero for files.
    directories: Vec<(u32, u32)>,
}

struct Layout {
    primary: Place,
    joliet: Place,
    /// By node: (sector, bytes); zero for directories.
    files: Vec<(u32, u32)>,
    /// By node: where the long Rock Ridge name is.
    long_names: Vec<Option<LongName>>,
    continuation: Vec<u8>,
    sectors: u32,
}

#[derive(Clone, Copy)]
struct LongName {
    sector: u32,
    offset: u32,
    length: u32,
}

impl Layout {
    fn new(tree: &Tree<'_>, primary: &Names, joliet: &Names) -> Self {
        let mut next = FIRST_DESCRIPTOR + 3;
        let mut take = |bytes: usize| {
            let at = next;
            next += bytes.div_ceil(SECTOR) as u32;
            at
        };
        let mut tables = |names: &Names| {
            let size = names.path_table_size();
            Place {
                path_table_size: size as u32,
                path_table_little: take(size),
                path_table_big: take(size),
                directories: vec![(0, 0); tree.len()],
            }
        };
        let (mut primary_place, mut joliet_place) = (tables(primary), tables(joliet));
        for (names, place) in [(primary, &mut primary_place), (joliet, &mut joliet_place)] {
            for &dir in &names.directories {
                let size = directory_size(tree, names, dir);
                place.directories[dir] = (take(size), size as u32);
            }
        }

        // A long name never crosses a sector: readers look into one sector only.
        let mut long_names = vec![None; tree.len()];
        let mut continuation: Vec<u8> = Vec::new();
        let first = take(0);
        for (node, place) in long_names.iter_mut().enumerate().skip(1) {
            if fits_record(primary.id(node), tree.name(node)) {
                continue;
            }
            let entry = name_entries(tree.name(node));
            if SECTOR - continuation.len() % SECTOR < entry.len() {
                pad(&mut continuation);
            }
            *place = Some(LongName {
                sector: first + (continuation.len() / SECTOR) as u32,
                offset: (continuation.len() % SECTOR) as u32,
                length: entry.len() as u32,
            });
            continuation.extend(entry);
        }
        pad(&mut continuation);
        take(continuation.len());

        let mut files = vec![(0, 0); tree.len()];
        for node in tree.files() {
            let size = tree.data(node).len();
            files[node] = (take(size), size as u32);
        }
        let sectors = next.next_multiple_of(ROUND_TO);
        Layout { primary: primary_place, joliet: joliet_place, files, long_names, continuation, sectors }
    }
}

#[derive(Clone, Copy)]
enum Endian {
    Little,
    Big,
}

/// ISO 9660 stores most numbers in both byte orders, one after the other.
fn both32(n: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&n.to_le_bytes());
    out[4..].copy_from_slice(&n.to_be_bytes());
    out
}

fn both16(n: u16) -> [u8; 4] {
    let mut out = [0; 4];
    out[..2].copy_from_slice(&n.to_le_bytes());
    out[2..].copy_from_slice(&n.to_be_bytes());
    out
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
}

fn descriptor(layout: &Layout, names: &Names, place: &Place, label: &str) -> Vec<u8> {
    let joliet = names.hierarchy == Hierarchy::Joliet;
    let text = |s: &str, size: usize| -> Vec<u8> {
        if joliet {
            let mut out: Vec<u8> = s.encode_utf16().flat_map(u16::to_be_bytes).collect();
            out.truncate(size / 2 * 2);
            while out.len() + 1 < size {
                out.extend([0, b' ']);
            }
            out.resize(size, 0);
            out
        } else {
            let mut out = s.as_bytes().to_vec();
            out.resize(size, b' ');
            out
        }
    };
    let mut d = Vec::with_capacity(SECTOR);
    d.push(if joliet { 2 } else { 1 });
    d.extend(b"CD001\x01\0");
    d.extend(text("LINUX", 32));
    d.extend(text(label, 32));
    d.extend([0; 8]);
    d.extend(both32(layout.sectors));
    let mut escapes = [0u8; 32];
    if joliet {
        // UCS-2 level 3.
        escapes[..3].copy_from_slice(b"%/E");
    }
    d.extend(escapes);
    d.extend(both16(1));
    d.extend(both16(1));
    d.extend(both16(SECTOR as u16));
    d.extend(both32(place.path_table_size));
    d.extend(place.path_table_little.to_le_bytes());
    d.extend([0; 4]);
    d.extend(place.path_table_big.to_be_bytes());
    d.extend([0; 4]);
    d.extend(record(&[0], place.directories[0], true, &[]));
    for s in ["", "", "", "FERROVIRT"] {
        d.extend(text(s, 128));
    }
    for _ in 0..3 {
        d.extend(text("", 37));
    }
    d.extend(VOLUME_DATE);
    d.extend(VOLUME_DATE);
    d.extend(NO_DATE);
    d.extend(NO_DATE);
    d.push(1);
    d.resize(SECTOR, 0);
    d
}

fn path_table(tree: &Tree<'_>, names: &Names, place: &Place, endian: Endian) -> Vec<u8> {
    let mut out = Vec::new();
    for &dir in &names.directories {
        let id: &[u8] = if dir == 0 { &[0] } else { names.id(dir) };
        let (sector, parent) = (place.directories[dir].0, names.directory_number(tree.parent(dir)));
        out.extend([id.len() as u8, 0]);
        match endian {
            Endian::Little => {
                out.extend(sector.to_le_bytes());
                out.extend(parent.to_le_bytes());
            }
            Endian::Big => {
                out.extend(sector.to_be_bytes());
                out.extend(parent.to_be_bytes());
            }
        }
        out.extend(id);
        if id.len() % 2 == 1 {
            out.push(0);
        }
    }
    out
}

/// A directory record: the fixed part, the identifier, and the system use area that Rock Ridge lives in.
fn record(id: &[u8], extent: (u32, u32), is_dir: bool, system_use: &[u8]) -> Vec<u8> {
    let mut r = vec![0, 0];
    r.extend(both32(extent.0));
    r.extend(both32(extent.1));
    r.extend(RECORD_DATE);
    r.extend([if is_dir { 2 } else { 0 }, 0, 0]);
    r.extend(both16(1));
    r.push(id.len() as u8);
    r.extend(id);
    if r.len() % 2 == 1 {
        r.push(0);
    }
    r.extend(system_use);
    if r.len() % 2 == 1 {
        r.push(0);
    }
    r[0] = r.len() as u8;
    r
}

const CONTINUATION_LEN: usize = 28;
const ATTRIBUTES_LEN: usize = 36 + 12;

/// Rock Ridge `PX` (mode, links, owner) and `TF` (modification time).
fn attributes(mode: u32, links: u32) -> Vec<u8> {
    let mut out = b"PX\x24\x01".to_vec();
    for n in [mode, links, 0, 0] {
        out.extend(both32(n));
    }
    out.extend(b"TF\x0c\x01\x02");
    out.extend(RECORD_DATE);
    out
}

/// Rock Ridge `NM` entries; a long name is split, each part but the last saying that it continues.
fn name_entries(name: &str) -> Vec<u8> {
    const PART: usize = 200;
    let parts: Vec<&[u8]> = name.as_bytes().chunks(PART).collect();
    let mut out = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        out.extend(b"NM");
        out.extend([(5 + part.len()) as u8, 1, u8::from(i + 1 < parts.len())]);
        out.extend(*part);
    }
    out
}

fn fits_record(id: &[u8], name: &str) -> bool {
    let head = (33 + id.len()).next_multiple_of(2);
    head + ATTRIBUTES_LEN + name_entries(name).len() <= 254
}

/// The records of one directory: itself, its parent, its children in identifier order.
fn records(tree: &Tree<'_>, names: &Names, place: &Place, layout: Option<&Layout>, dir: usize) -> Vec<Vec<u8>> {
    let rock_ridge = names.hierarchy == Hierarchy::Primary;
    let system_use = |node: usize| match (rock_ridge, tree.is_dir(node)) {
        (false, _) => Vec::new(),
        (true, true) => attributes(0o040_555, tree.links(node)),
        (true, false) => attributes(0o100_444, 1),
    };
    let mut own = system_use(dir);
    if rock_ridge && dir == 0 {
        // The first record of the root says that Rock Ridge is in use.
        let mut announced = b"SP\x07\x01\xbe\xef\0".to_vec();
        announced.extend(own);
        announced.extend(b"ER\x12\x01\x0a\0\0\x01RRIP_1991A");
        own = announced;
    }
    let parent = tree.parent(dir);
    let mut out = vec![
        record(&[0], place.directories[dir], true, &own),
        record(&[1], place.directories[parent], true, &system_use(parent)),
    ];
    for &child in names.children(dir) {
        let mut area = system_use(child);
        if rock_ridge {
            if fits_record(names.id(child), tree.name(child)) {
                area.extend(name_entries(tree.name(child)));
            } else {
                let at = layout.and_then(|l| l.long_names[child]);
                let at = at.unwrap_or(LongName { sector: 0, offset: 0, length: 0 });
                area.extend([b'C', b'E', CONTINUATION_LEN as u8, 1]);
                for n in [at.sector, at.offset, at.length] {
                    area.extend(both32(n));
                }
            }
        }
        let is_dir = tree.is_dir(child);
        let extent = match (is_dir, layout) {
            (true, _) => place.directories[child],
            (false, Some(l)) => l.files[child],
            (false, None) => (0, 0),
        };
        out.push(record(names.id(child), extent, is_dir, &area));
    }
    out
}

fn directory(tree: &Tree<'_>, names: &Names, place: &Place, layout: &Layout, dir: usize) -> Vec<u8> {
    pack(&records(tree, names, place, Some(layout), dir))
}

/// Record lengths do not depend on places, so a directory can be measured before anything is placed.
fn directory_size(tree: &Tree<'_>, names: &Names, dir: usize) -> usize {
    let nowhere =
        Place { path_table_size: 0, path_table_little: 0, path_table_big: 0, directories: vec![(0, 0); tree.len()] };
    pack(&records(tree, names, &nowhere, None, dir)).len()
}

/// Records do not cross sectors.
fn pack(records: &[Vec<u8>]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for r in records {
        if out.len() % SECTOR + r.len() > SECTOR {
            pad(&mut out);
        }
        out.extend(r);
    }
    pad(&mut out);
    out
}
