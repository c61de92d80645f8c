//! Our own goldens: each `data/machines/VERSION/*.yaml` has the spec and the XML it must become.
//!
//! `UPDATE_GOLDENS=1` writes those of the version in the making anew. Released ones stay as they are, and every later version
//! must reproduce them: a machine that runs must find itself again after an upgrade. So a new version begins with a copy.

use std::{fs, path::Path};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, machine_spec},
    defaults, features,
    xml::domain_xml,
};

#[test]
fn goldens() {
    let directory = Path::new("tests/data/machines");
    let context = fs::read_to_string(directory.with_file_name("context.json")).unwrap();
    let context: Context = serde_json::from_str(&context).unwrap();
    let mut versions = vec![];
    for entry in fs::read_dir(directory).unwrap() {
        let version = entry.unwrap().path();
        let seen = goldens_of(&version, &context);
        assert!(seen >= 4, "{}: only {seen}", version.display());
        versions.push(version.file_name().unwrap().to_string_lossy().into_owned());
    }
    let making = env!("CARGO_PKG_VERSION");
    assert!(versions.iter().any(|version| version == making), "{making} has no goldens, only {versions:?}");
}

fn goldens_of(version: &Path, context: &Context) -> usize {
    let may_change = version.ends_with(env!("CARGO_PKG_VERSION")) && std::env::var_os("UPDATE_GOLDENS").is_some();
    let mut seen = 0;
    for entry in fs::read_dir(version).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        seen += 1;
        let mut vmi: VirtualMachineInstance = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        defaults::apply(&mut vmi, context.arch);
        let once = vmi.clone();
        defaults::apply(&mut vmi, context.arch);
        assert_eq!(once, vmi, "{}: defaults are idempotent", path.display());
        assert_eq!(features::unsupported(&vmi), [], "{}", path.display());
        let spec = machine_spec(&vmi, context).unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
        compare(&path.with_extension("xml"), &domain_xml(&spec), may_change);
        compare(&path.with_extension("json"), &serde_json::to_string_pretty(&spec).unwrap(), may_change);
        let wire = serde_json::to_vec(&spec).unwrap();
        assert_eq!(spec, serde_json::from_slice(&wire).unwrap());
    }
    seen
}

fn compare(path: &Path, found: &str, may_change: bool) {
    if may_change {
        fs::write(path, format!("{found}\n")).unwrap();
        return;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{} line {}", path.display(), line + 1);
    }
    assert_eq!(found, expected.trim_end(), "{}", path.display());
}
