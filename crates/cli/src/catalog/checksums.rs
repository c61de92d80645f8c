//! Files of checksums as distributions publish them: lines of `sha256sum` and `sha512sum`, lines as BSD writes them, either of them in a signed
//! message, or the checksum alone.

/// The checksum of a file, as `sha256:…` or `sha512:…`; the stronger one if there are both. `alone` says that the document is about this file
/// only: then the name in it does not matter, and it may have none.
pub fn find(document: &str, file: &str, alone: bool) -> Option<String> {
    let lines: Vec<(Option<&str>, &str)> = document.lines().filter_map(line).collect();
    let named = lines.iter().filter(|(name, _)| *name == Some(file));
    let found = named.map(|(_, hex)| *hex).max_by_key(|hex| hex.len());
    let found = found.or(match lines.as_slice() {
        [(_, hex)] if alone => Some(*hex),
        _ => None,
    });
    let hex = found?.to_ascii_lowercase();
    Some(format!("{}:{hex}", if hex.len() == 128 { "sha512" } else { "sha256" }))
}

/// Name and checksum of a line. Weaker kinds than SHA-256 are none.
fn line(line: &str) -> Option<(Option<&str>, &str)> {
    let line = line.trim();
    // SHA256 (name) = hex
    if let Some((kind, rest)) = line.split_once(" (")
        && kind.starts_with("SHA")
    {
        let (name, hex) = rest.rsplit_once(") = ")?;
        return is_sum(hex).then_some((Some(name), hex));
    }
    // hex  name, hex *name, or hex
    let (hex, name) = match line.split_once(char::is_whitespace) {
        Some((hex, name)) => (hex, Some(name.trim_start().trim_start_matches('*'))),
        None => (line, None),
    };
    let name = name.map(|name| name.strip_prefix("./").unwrap_or(name));
    is_sum(hex).then_some((name, hex))
}

fn is_sum(hex: &str) -> bool {
    [64, 128].contains(&hex.len()) && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_style_is_read() {
        let (a, b, long) = ("a".repeat(64), "B".repeat(64), "c".repeat(128));
        let short = "d".repeat(32);
        let sum = |hex: &str| Some(format!("sha256:{}", hex.to_lowercase()));
        for (document, file, alone, expected) in [
            (format!("{a}  disk.img\n{b}  other.img\n"), "disk.img", false, sum(&a)),
            (format!("{a} *disk.img\n{b} *other.img\n"), "other.img", false, sum(&b)),
            (format!("{a}  ./disk.img\n"), "disk.img", false, sum(&a)),
            (
                format!("# disk.img: 5 bytes\nSHA256 (disk.img) = {a}\nSHA256 (x (1)) = {b}\n"),
                "disk.img",
                false,
                sum(&a),
            ),
            (format!("SHA256 (x (1)) = {b}"), "x (1)", false, sum(&b)),
            (format!("{long}  disk.img\n"), "disk.img", false, Some(format!("sha512:{long}"))),
            (format!("SHA256 (d) = {a}\nSHA512 (d) = {long}\n"), "d", false, Some(format!("sha512:{long}"))),
            (
                format!(
                    "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nSHA256 (d) = {a}\n-----BEGIN PGP SIGNATURE-----\niQ==\n"
                ),
                "d",
                false,
                sum(&a),
            ),
            // Of this file only: its name may be that of the build.
            (format!("{a}\n"), "d", true, sum(&a)),
            (format!("{a}  build-1.img\n"), "d", true, sum(&a)),
            (format!("{a}  x\n{b}  y\n"), "d", true, None),
            // Of another file, too weak, or nothing of the kind.
            (format!("{a}  disk.img.xz\n"), "disk.img", false, None),
            (format!("{a}\n"), "d", false, None),
            (format!("{short}  d\n"), "d", true, None),
            (format!("MD5 (d) = {short}\n"), "d", true, None),
            ("<html>not found</html>".to_owned(), "d", true, None),
            (String::new(), "d", true, None),
        ] {
            assert_eq!(find(&document, file, alone), expected, "{file} in {document}");
        }
    }
}
