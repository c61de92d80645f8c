//! Our own goldens: each `data/machines/*.yaml` has the spec and the XML it must become.
//!
//! `UPDATE_GOLDENS=1` writes them anew. Released ones must not change: a machine that runs must find itself again.

use std::{fs, path::Path};

use ferrovirt_api::v1::VirtualMachineInstance;
use ferrovirt_machine::{
    convert::{Context, machine_spec},
    defaults, features,
    xml::domain_xml,
};

#[test]
fn goldens() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/machines");
    let context = fs::read_to_string(directory.with_file_name("context.json")).unwrap();
    let context: Context = serde_json::from_str(&context).unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(&directory).unwrap() {
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
        let spec = machine_spec(&vmi, &context).unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
        compare(&path.with_extension("xml"), &domain_xml(&spec));
        compare(&path.with_extension("json"), &serde_json::to_string_pretty(&spec).unwrap());
        let wire = serde_json::to_vec(&spec).unwrap();
        assert_eq!(spec, serde_json::from_slice(&wire).unwrap());
    }
    assert_eq!(seen, 4);
}

fn compare(path: &Path, found: &str) {
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        fs::write(path, format!("{found}\n")).unwrap();
        return;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{} line {}", path.display(), line + 1);
    }
    assert_eq!(found, expected.trim_end(), "{}", path.display());
}
