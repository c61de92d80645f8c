use std::path::Path;
pub fn run(root: &Path) -> anyhow::Result<bool> {
    Ok(crate::r#gen::verify_lock(root)?.is_empty())
}
