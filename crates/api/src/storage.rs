//! Rules about storage that more than one of our parts goes by.

use k8s_openapi::api::storage::v1::StorageClass;

/// On a StorageClass: claims that name none get this one.
pub const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// The newest class that is marked, as upstream picks among several.
pub fn default_class<'a>(classes: impl IntoIterator<Item = &'a StorageClass>) -> Option<&'a StorageClass> {
    let marked = classes.into_iter().filter(|class| {
        let annotations = class.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(IS_DEFAULT_CLASS)).is_some_and(|value| value == "true")
    });
    marked.max_by_key(|class| class.metadata.creation_timestamp.as_ref().map(|at| at.0))
}
