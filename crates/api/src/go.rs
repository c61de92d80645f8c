//! The two habits of Go's JSON that upstream's types rely on.

use serde::{Deserialize, Deserializer};

/// Reads `null` as the zero value.
pub(crate) fn null<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// `omitempty`, for what has no `is_empty` of its own.
pub(crate) fn zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
