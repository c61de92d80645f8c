//! The tables in the documentation are those of the code.
//!
//! `UPDATE_GOLDENS=1` writes them anew; so does `cargo xtask gen`.

use std::{fs, path::Path};

use ferrovirt_machine::features;

const BEGIN: &str = "<!-- generated: features -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn the_feature_table_is_fresh() {
    let path = Path::new("../../docs/hypervisors.md");
    let text = fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let fresh = format!("{head}{BEGIN}{}{END}{tail}", features::markdown());
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        fs::write(path, fresh).unwrap();
        return;
    }
    assert!(text == fresh, "docs/hypervisors.md is stale; run `cargo xtask gen`");
}
