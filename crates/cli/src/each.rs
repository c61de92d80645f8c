//! One command on several objects: what fails for one is told, and the others get their turn.

use std::fmt;

use anyhow::Result;

use crate::exit;

/// Some of several failed; each was told already.
#[derive(Debug)]
pub struct SomeFailed {
    failed: usize,
    of: usize,
    /// The first failure's, which the command ends with.
    pub code: u8,
}

impl fmt::Display for SomeFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} failed", self.failed, self.of)
    }
}

impl std::error::Error for SomeFailed {}

/// Does it for each. A single failure is handed on as it is; of several objects each failure is told when it happens.
pub async fn of<T>(all: Vec<T>, mut act: impl AsyncFnMut(T) -> Result<()>) -> Result<()> {
    let of = all.len();
    let (mut failed, mut code) = (0, None);
    for one in all {
        let Err(error) = act(one).await else { continue };
        if of == 1 {
            return Err(error);
        }
        exit::tell(&error);
        failed += 1;
        code.get_or_insert_with(|| exit::code(&error));
    }
    match code {
        None => Ok(()),
        Some(code) => Err(SomeFailed { failed, of, code }.into()),
    }
}

/// The outcome of two rounds over several objects: first all are asked, then all are waited for.
pub fn both(first: Result<()>, second: Result<()>) -> Result<()> {
    if let (Err(_), Err(error)) = (&first, &second) {
        exit::tell(error);
    }
    first.and(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_failure_does_not_keep_the_others() {
        let mut seen = vec![];
        let outcome = of(vec![1, 2, 3], async |number| {
            seen.push(number);
            match number {
                2 => anyhow::bail!("no"),
                _ => Ok(()),
            }
        })
        .await;
        assert_eq!(seen, [1, 2, 3]);
        assert_eq!(outcome.unwrap_err().to_string(), "1 of 3 failed");
        let single = of(vec![1], async |_| anyhow::bail!("its own words")).await;
        assert_eq!(single.unwrap_err().to_string(), "its own words");
        assert!(of(vec![1, 2], async |_| Ok(())).await.is_ok());
    }
}
