//! ISO volumes read back: by a small parser of each name space, by blkid, and by the kernel.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ferrovirt_disks::iso::{IsoError, build_iso, write_iso};

type Files = Vec<(String, Vec<u8>)>;

fn cidata() -> Files {
    vec![
        ("user-data".into(), b"#cloud-config\n".to_vec()),
        ("meta-data".into(), b"instance-id: a\n".to_vec()),
        ("network-config".into(), Vec::new()),
    ]
}

fn config_drive() -> Files {
    vec![
        ("openstack/latest/meta_data.json".into(), b"{}".to_vec()),
        ("openstack/latest/user_data".into(), vec![7; 5000]),
        ("openstack/content/0000".into(), vec![8; 2048]),
        ("ec2/latest/meta-data.json".into(), b"{\"a\":1}".to_vec()),
    ]
}

/// Names that fight for the same 8.3 and Joliet identifiers, names of every length, a directory of many sectors.
fn awkward() -> Files {
    let mut files: Files = (0..300).map(|i| (format!("many/a-rather-long-name-{i:04}.conf"), vec![b'x'; i])).collect();
    for length in [1, 63, 64, 65, 100, 155, 160, 199, 200, 201, 254, 255] {
        files.push((format!("long/{}", "n".repeat(length)), length.to_string().into_bytes()));
    }
    files.push((".dot".into(), b"dot".to_vec()));
    files.push(("UPPER.TXT".into(), b"upper".to_vec()));
    files.push(("upper.txt".into(), b"lower".to_vec()));
    files.push(("naïve-ключ-🦀".into(), b"unicode".to_vec()));
    files.push(("a/b/c/d/e/f/g/h/i/deep".into(), b"deep".to_vec()));
    files
}

fn cases() -> Vec<(&'static str, Files)> {
    vec![("cidata", cidata()), ("config-2", config_drive()), ("awkward", awkward()), ("empty", vec![])]
}

#[test]
fn every_name_space_reads_back() {
    for (label, files) in cases() {
        let image = build_iso(label, &files).unwrap();
        let wanted: BTreeMap<String, Vec<u8>> = files.into_iter().collect();
        assert_eq!(read(&image, Kind::RockRidge), wanted, "{label}: Rock Ridge");
        // Joliet cuts names at 64 units, so compare contents there.
        let mut joliet: Vec<Vec<u8>> = read(&image, Kind::Joliet).into_values().collect();
        let mut contents: Vec<Vec<u8>> = wanted.into_values().collect();
        joliet.sort();
        contents.sort();
        assert_eq!(joliet, contents, "{label}: Joliet");
    }
    let names: Vec<String> = read(&build_iso("config-2", &config_drive()).unwrap(), Kind::Joliet).into_keys().collect();
    assert_eq!(
        names,
        [
            "ec2/latest/meta-data.json",
            "openstack/content/0000",
            "openstack/latest/meta_data.json",
            "openstack/latest/user_data"
        ]
    );
}

#[test]
fn output_depends_on_the_contents_only() {
    let mut reversed = awkward();
    reversed.reverse();
    assert!(build_iso("x", &awkward()).unwrap() == build_iso("x", &reversed).unwrap());
}

#[test]
fn bad_input_is_named() {
    let file = |p: &str| vec![(p.to_string(), vec![])];
    let check = |label: &str, files: Files, wanted: &str| {
        let error = build_iso(label, &files).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error} lacks {wanted}");
    };
    check("", cidata(), "label");
    check(&"x".repeat(33), cidata(), "label");
    for path in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/.", "nul\0"] {
        check("x", file(path), "relative path");
    }
    check("x", file(&"n".repeat(256)), "255");
    check("x", vec![("a".into(), vec![]), ("a".into(), vec![])], "twice");
    check("x", vec![("a".into(), vec![]), ("a/b".into(), vec![])], "twice");
    let error = write_iso(Path::new("/nonexistent/x.iso"), "x", &cidata()).unwrap_err();
    assert!(matches!(error, IsoError::Write { .. }));
}

#[test]
fn blkid_and_the_kernel_agree() {
    let dir = tempfile::tempdir().unwrap();
    for (label, files) in cases() {
        let path = dir.path().join("disk.iso");
        write_iso(&path, label, &files).unwrap();
        if let Ok(out) = Command::new("blkid").args(["-p", "-o", "export"]).arg(&path).output() {
            let text = String::from_utf8(out.stdout).unwrap();
            assert!(text.lines().any(|l| l == format!("LABEL={label}")), "{text}");
            assert!(text.lines().any(|l| l == "TYPE=iso9660"), "{text}");
        }
        let target = dir.path().join("mnt");
        std::fs::create_dir_all(&target).unwrap();
        // Mounting needs root and a loop device; the parser above covers machines without.
        let mounted = Command::new("mount")
            .args(["-o", "loop,ro", "-t", "iso9660"])
            .args([&path, &target])
            .status()
            .is_ok_and(|s| s.success());
        if mounted {
            let seen = tree(&target);
            assert!(Command::new("umount").arg(&target).status().unwrap().success());
            assert_eq!(seen, files.into_iter().collect(), "{label}: the kernel's view");
        } else {
            eprintln!("no loop mount here; {label} checked by the parser only");
        }
    }
}

fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_string();
                out.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    RockRidge,
    Joliet,
}

/// A reader that follows the volume descriptor, not the writer's own layout.
fn read(image: &[u8], kind: Kind) -> BTreeMap<String, Vec<u8>> {
    let wanted = if kind == Kind::Joliet { 2 } else { 1 };
    let descriptor =
        (16..32).map(|s| &image[s * 2048..(s + 1) * 2048]).find(|d| d[0] == wanted && &d[1..6] == b"CD001").unwrap();
    let word = |at: &[u8]| {
        let (little, big) =
            (u32::from_le_bytes(at[..4].try_into().unwrap()), u32::from_be_bytes(at[4..8].try_into().unwrap()));
        assert_eq!(little, big);
        little as usize
    };
    assert_eq!(word(&descriptor[80..]) * 2048, image.len());
    let mut out = BTreeMap::new();
    let mut todo = vec![(String::new(), word(&descriptor[158..]), word(&descriptor[166..]))];
    while let Some((prefix, sector, size)) = todo.pop() {
        for sector in image[sector * 2048..sector * 2048 + size].chunks(2048) {
            let mut rest = sector;
            while !rest.is_empty() && rest[0] != 0 {
                let (r, tail) = rest.split_at(rest[0] as usize);
                rest = tail;
                let id = &r[33..33 + r[32] as usize];
                if id == [0] || id == [1] {
                    continue;
                }
                let name = match kind {
                    Kind::Joliet => {
                        let units: Vec<u16> = id.chunks(2).map(|c| u16::from_be_bytes([c[0], c[1]])).collect();
                        String::from_utf16_lossy(&units).trim_end_matches(";1").to_string()
                    }
                    Kind::RockRidge => rock_ridge_name(image, &r[(33 + id.len()).next_multiple_of(2)..], &word),
                };
                let (at, length) = (word(&r[2..]), word(&r[10..]));
                let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                if r[25] & 2 != 0 {
                    todo.push((path, at, length));
                } else {
                    assert!(out.insert(path, image[at * 2048..at * 2048 + length].to_vec()).is_none());
                }
            }
        }
    }
    out
}

fn rock_ridge_name<'a>(image: &'a [u8], mut area: &'a [u8], word: &dyn Fn(&[u8]) -> usize) -> String {
    let mut name = Vec::new();
    let mut more = None;
    loop {
        while area.len() >= 4 {
            let (entry, tail) = area.split_at(area[2] as usize);
            area = tail;
            match &entry[..2] {
                b"NM" => name.extend(&entry[5..]),
                b"CE" => {
                    let at = word(&entry[4..]) * 2048 + word(&entry[12..]);
                    more = Some(&image[at..at + word(&entry[20..])]);
                }
                _ => {}
            }
        }
        match more.take() {
            Some(next) => area = next,
            None => return String::from_utf8(name).unwrap(),
        }
    }
}
