//! What the server knows about one resource.

use std::sync::Arc;

use ferrovirt_schema::Schema;

use super::Columns;
use super::go_form::GoForm;
use super::last_line::LastLine;
use crate::crd::{Conversion, Rules};
use crate::object;

#[derive(Debug, Clone)]
pub struct Resource {
    pub group: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub namespaced: bool,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub verbs: &'static [&'static str],
    /// Served versions.
    pub versions: Vec<Version>,
    /// The version objects are stored in; for custom resources it may not be served.
    pub storage_version: String,
    /// The name of the resource's map in the store.
    pub storage: Arc<str>,
    /// The group that `storage_version` belongs to; differs from `group` only where two groups share storage.
    pub storage_group: String,
    pub special: Special,
    pub custom: bool,
    /// `metadata.generation` counts changes outside of metadata and status.
    pub generation: bool,
    /// PUT without a resourceVersion overwrites (most built-in kinds).
    pub unconditional_update: bool,
    pub name_rule: NameRule,
    /// When the schemas of a custom resource last changed.
    pub schema_revision: u64,
    /// How objects of a custom resource come from one version to another, if not by their name alone.
    pub conversion: Option<Arc<Conversion>>,
    /// Acknowledged before it is on disk; a power cut may lose the last second of it.
    pub relaxed: bool,
}

#[derive(Debug, Clone)]
pub struct Version {
    pub name: String,
    pub status: bool,
    pub scale: Option<Scale>,
    /// Other subresources (`finalize`, `binding`, `log`).
    pub subresources: &'static [&'static str],
    pub schema: SchemaSource,
    pub columns: Columns,
    /// Name of the OpenAPI definition.
    pub definition: String,
    /// Top-level fields that this version names differently than the storage version: (stored, here).
    pub renames: &'static [(&'static str, &'static str)],
    /// How an object of this version differs from a stored one beyond names of fields.
    pub reshape: Option<Reshape>,
    /// Sent as a warning with every request, if the version is deprecated.
    pub deprecation: Option<String>,
    /// Field paths beyond metadata.name and metadata.namespace that field selectors may use.
    pub selectable: Vec<String>,
    /// CEL rules of custom resources.
    pub rules: Option<Rules>,
    pub read_defaults: ReadDefaults,
    pub last_line: LastLine,
    pub go_form: GoForm,
}

/// Which stored objects may lack defaults that a reader has to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadDefaults {
    /// The schema has no defaults.
    None,
    /// Those that were stored before the schema changed.
    Older,
    /// Any: other versions have other defaults.
    Any,
}

/// Turns a stored object into a version's own form, or back.
pub type Reshape = fn(&mut serde_json::Value, Direction);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    FromStorage,
    ToStorage,
}

#[derive(Debug, Clone)]
pub enum SchemaSource {
    /// Compiled on first use from the embedded definitions.
    Builtin,
    Custom(Schema),
}

/// The paths of a scale subresource (`.spec.replicas` and so on).
#[derive(Debug, Clone)]
pub struct Scale {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub selector: Option<String>,
}

/// The kinds Kubernetes itself treats specially, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    None,
    Namespace,
    Pod,
    Service,
    Secret,
    Node,
    Claim,
    Event,
    Crd,
    /// Changes of it invalidate the authorization index.
    Rbac,
    ApiService,
    /// Changes of it invalidate the webhook index.
    Webhook,
    /// Admission policies and their bindings. Changes of one invalidate the policy index.
    Policy,
    SigningRequest,
    PriorityClass,
    SubjectAccessReview,
    SelfSubjectAccessReview,
    LocalSubjectAccessReview,
    SelfSubjectRulesReview,
    TokenReview,
    SelfSubjectReview,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// DNS-1123 subdomain, 253 characters.
    Subdomain,
    /// DNS-1123 label, 63 characters.
    Label,
    /// DNS-1035 label (services).
    Label1035,
    /// Anything that is one path segment (RBAC).
    PathSegment,
}

impl Resource {
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.name == name)
    }

    /// Reviews: created, answered, never stored.
    pub fn is_virtual(&self) -> bool {
        matches!(
            self.special,
            Special::SubjectAccessReview
                | Special::SelfSubjectAccessReview
                | Special::LocalSubjectAccessReview
                | Special::SelfSubjectRulesReview
                | Special::TokenReview
                | Special::SelfSubjectReview
        )
    }

    pub fn shares_storage(&self) -> bool {
        self.group != self.storage_group
    }

    pub fn api_version(&self, version: &str) -> String {
        object::api_version(&self.group, version)
    }

    pub fn storage_api_version(&self) -> String {
        object::api_version(&self.storage_group, &self.storage_version)
    }

    /// `plural.group`, the name of its CRD.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }
}

impl Version {
    /// Whether an object that was stored at `revision` has to be given its defaults again.
    pub fn defaults_on_read(&self, resource: &Resource, revision: u64) -> bool {
        match self.read_defaults {
            ReadDefaults::None => false,
            ReadDefaults::Older => revision < resource.schema_revision,
            ReadDefaults::Any => true,
        }
    }

    pub fn has_subresource(&self, name: &str) -> bool {
        match name {
            "status" => self.status,
            "scale" => self.scale.is_some(),
            other => self.subresources.contains(&other),
        }
    }

    pub fn schema(&self) -> Schema {
        match &self.schema {
            SchemaSource::Custom(schema) => schema.clone(),
            SchemaSource::Builtin => super::builtin_definitions().get(&self.definition).unwrap_or_else(Schema::any),
        }
    }
}
