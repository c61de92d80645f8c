//! Where root works below directories that tenants can write, it works by descriptor. A module says so in its first
//! lines, and then no path call may stand in it: one that is looked up anew can be answered with a link.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

// In two halves, so that this file does not find itself.
const MARKER: &str = concat!("//! Root works here below ", "directories of tenants: by descriptor only.");
/// Modules that may not lose their marker.
const MARKED: [&str; 9] = [
    "crates/cdi/src/cache.rs",
    "crates/node-lite/src/payload.rs",
    "crates/node-lite/src/storage/files.rs",
    "crates/node-lite/src/storage/usage.rs",
    "crates/node-lite/src/sub_path.rs",
    "crates/node-lite/src/volume_dirs.rs",
    "crates/node-lite/src/volumes.rs",
    "crates/node/src/streams.rs",
    "crates/node/src/tun.rs",
];
const PATH_CALLS: [&str; 29] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::copy(",
    "fs::rename(",
    "fs::remove_",
    "fs::create_dir",
    "fs::metadata(",
    "fs::symlink_metadata(",
    "fs::read_dir(",
    "fs::read_link(",
    "fs::set_permissions(",
    "fs::canonicalize(",
    "fs::hard_link(",
    "fs::chown(",
    "fs::exists(",
    "File::open(",
    "File::create",
    "File::options(",
    "OpenOptions::new(",
    "DirBuilder::new(",
    "lchown(",
    ".canonicalize()",
    ".exists()",
    ".symlink_metadata()",
    ".read_dir()",
    "unix::fs::symlink",
    "mknod(",
    "std::path::Path::new(\"/proc/self/fd",
];

pub fn check(root: &Path, files: &[String]) -> Result<Vec<String>> {
    let mut findings: Vec<String> = Vec::new();
    for file in files.iter().filter(|file| file.ends_with(".rs")) {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))?;
        let marked = text.lines().any(|line| line == MARKER);
        if marked {
            findings.extend(path_calls(&text).map(|(line, call)| {
                format!(
                    "{file}:{line}: `{call}` looks a path up anew, below a tenant's directory; use ferrovirt-beneath"
                )
            }));
        } else if MARKED.contains(&file.as_str()) {
            findings.push(format!("{file} lost its line `{MARKER}`"));
        }
    }
    let gone = MARKED.iter().filter(|marked| !files.iter().any(|file| file == *marked));
    findings.extend(gone.map(|file| format!("{file} is not there; the list in this check names it")));
    Ok(findings)
}

/// Lines and calls before the module's tests, which play the tenant.
fn path_calls(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let code = text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    code.filter(|(_, line)| !line.trim_start().starts_with("//")).filter_map(|(number, line)| {
        let call = PATH_CALLS.iter().find(|call| line.contains(**call))?;
        Some((number + 1, *call))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_calls_are_found_before_the_tests() {
        let text = "use std::fs;\n// fs::read(x)\nlet a = fs::read(path);\nif path.exists() {\n}\n#[cfg(test)]\nfs::write(x)\n";
        assert_eq!(path_calls(text).collect::<Vec<_>>(), [(3, "fs::read("), (4, ".exists()")]);
    }
}
