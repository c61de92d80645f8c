//! A kernel that does nothing, for hypervisors that start a machine from a kernel and from nothing else.
//!
//! An ELF file of one page with the note that makes hypervisors enter it in 32-bit mode (PVH), whatever its class.

/// Where the page is loaded: the first address above the holes of a PC.
const ADDRESS: u32 = 0x10_0000;
const HEADER: u16 = 64;
const SEGMENT: u16 = 56;
/// The code begins after the headers and the note.
const NOTE_AT: u16 = HEADER + 2 * SEGMENT;
const NOTE: u16 = 20;
const CODE_AT: u16 = NOTE_AT + NOTE;
/// `XEN_ELFNOTE_PHYS32_ENTRY`.
const ENTRY_NOTE: u32 = 18;

/// `cli; hlt`, for ever.
pub(super) fn halting() -> Vec<u8> {
    kernel(&[0xfa, 0xf4, 0xeb, 0xfd])
}

fn kernel(code: &[u8]) -> Vec<u8> {
    let size = u64::from(CODE_AT) + code.len() as u64;
    let entry = ADDRESS + u32::from(CODE_AT);
    let mut file = Vec::with_capacity(usize::from(CODE_AT) + code.len());
    // 64-bit, little endian, an executable for x86_64.
    file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0]);
    file.extend(u64::from(entry).to_le_bytes());
    file.extend(u64::from(HEADER).to_le_bytes());
    file.extend([0; 12]);
    for field in [HEADER, SEGMENT, 2, 0, 0, 0] {
        file.extend(field.to_le_bytes());
    }
    segment(&mut file, 1, 0, size);
    segment(&mut file, 4, u64::from(NOTE_AT), u64::from(NOTE));
    for field in [4, 4, ENTRY_NOTE] {
        file.extend(field.to_le_bytes());
    }
    file.extend(b"Xen\0");
    file.extend(entry.to_le_bytes());
    file.extend(code);
    file
}

/// One program header: readable and executable, where it is in the file is where it is in memory.
fn segment(file: &mut Vec<u8>, kind: u32, offset: u64, size: u64) {
    file.extend(kind.to_le_bytes());
    file.extend(5u32.to_le_bytes());
    let address = u64::from(ADDRESS) + offset;
    for field in [offset, address, address, size, size, 4] {
        file.extend(field.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system's own reader of ELF files must find the note and the entry.
    #[test]
    fn the_note_names_the_code() {
        let file = halting();
        assert_eq!(file.len(), usize::from(CODE_AT) + 4);
        let entry = (ADDRESS + u32::from(CODE_AT)).to_le_bytes();
        let note = &file[usize::from(NOTE_AT)..usize::from(CODE_AT)];
        assert_eq!((&note[12..16], &note[16..]), (&b"Xen\0"[..], &entry[..]));
        assert_eq!(&file[24..28], &entry, "the header's entry is the same");
        assert_eq!(&file[usize::from(CODE_AT)..], [0xfa, 0xf4, 0xeb, 0xfd]);
    }
}
