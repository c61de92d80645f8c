//! Development tasks that are code: `cargo xtask gen` writes the generated data files, `cargo xtask tidy` checks what
//! no compiler checks. Nothing here ships.

mod conformance;
mod functests;
mod r#gen;
mod ginkgo;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask <task>

  gen [--check] [--crd-schemas DIR]
      Write the generated data files (CRDs, OpenAPI slice, protobuf table).
      --check            compare with what would be generated, write nothing; sources that are
                         not at hand are skipped, and named
      --crd-schemas DIR  the KubeVirt structural schemas, one <singular>.yaml per kind
                         (default: ../shared/kubevirt/crd-schemas, if there)
  conformance --suite E2E_TEST --kubeconfig FILE --results DIR [--shards N] [--only PATTERN]
      Run the conformance tests that apply to an embedded host, and say what became of each.
      scripts/conformance.sh builds the suite and starts a host for it.
  test [--lanes N] [NAME...]
      Compile and run all test programs, or those with one of the names in theirs, several at a time.
  functests --suite TESTS_TEST --kubeconfig FILE… --results DIR [--only PATTERN] [--label LABEL]
            [--untried] [-- ARGUMENT…]
      Run KubeVirt's functional tests that apply to an embedded host, on a host for each kubeconfig, and
      compare with scripts/functests/expected.txt. scripts/functests.sh builds the suite and starts the hosts.
  tidy
      Check layering, file sizes, forbidden text, links and generated files.";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Answers whether the task found everything in order; findings are printed by the task itself.
fn run() -> Result<bool> {
    let mut args = std::env::args().skip(1);
    let root = workspace_root()?;
    match args.next().as_deref() {
        Some("gen") => {
            let mut options = r#gen::Options { check: false, crd_schemas: None };
            while let Some(arg) = args.next() {
                match arg.as_str() {
                    "--check" => options.check = true,
                    "--crd-schemas" => {
                        options.crd_schemas = Some(args.next().context("--crd-schemas needs a directory")?.into());
                    }
                    other => bail!("unknown argument {other}\n\n{USAGE}"),
                }
            }
            r#gen::run(&root, &options)
        }
        Some("conformance") => conformance::run(&root, args),
        Some("test") => test::run(&root, args),
        Some("functests") => functests::run(&root, args),
        Some("tidy") => tidy::run(&root),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(true)
        }
        Some(other) => bail!("unknown task {other}\n\n{USAGE}"),
        None => bail!("which task?\n\n{USAGE}"),
    }
}

fn workspace_root() -> Result<PathBuf> {
    // Cargo sets this for `cargo run`, so the task works from any directory of the workspace.
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR").context("run me through cargo: cargo xtask …")?;
    let root = Path::new(&manifest_dir).parent().context("xtask has no parent directory")?;
    Ok(root.to_path_buf())
}
