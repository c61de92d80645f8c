//! `ferrovirt importer`: fills the volume of its pod.

use anyhow::Result;

use crate::logging;

pub async fn run() -> Result<()> {
    logging::init(logging::LogFormat::Text);
    match ferrovirt_cdi::importer::run().await {
        0 => Ok(()),
        // Nothing may come after its last line, not even the usual word about an error.
        code => std::process::exit(code.into()),
    }
}
