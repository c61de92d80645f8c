//! Makes a struct a Kubernetes kind: metadata, spec and status, with `apiVersion` and `kind` on the wire only.

/// `kind!(Name, "plural", Spec, Status)`; without a status type the kind has no status. A kind of another group than
/// `kubevirt.io/v1` names it first: `kind!(in "group", "version"; Name, "plural", Spec, Status)`.
macro_rules! kind {
    ($name:ident, $plural:literal, $spec:ty, $status:ty) => {
        crate::kind::kind!(in "kubevirt.io", "v1"; $name, $plural, $spec, $status);
    };
    (in $group:literal, $version:literal; $name:ident, $plural:literal, $spec:ty, $status:ty) => {
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $name {
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            pub spec: $spec,
            pub status: $status,
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let with_status = !crate::go::zero(&self.status);
                let mut out = serializer.serialize_struct(stringify!($name), 4 + usize::from(with_status))?;
                out.serialize_field("apiVersion", <Self as k8s_openapi::Resource>::API_VERSION)?;
                out.serialize_field("kind", <Self as k8s_openapi::Resource>::KIND)?;
                out.serialize_field("metadata", &self.metadata)?;
                out.serialize_field("spec", &self.spec)?;
                if with_status {
                    out.serialize_field("status", &self.status)?;
                }
                out.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let wire = crate::kind::Wire::<Self, $spec, $status>::deserialize(deserializer)?;
                wire.check().map_err(serde::de::Error::custom)?;
                Ok(Self { metadata: wire.metadata, spec: wire.spec, status: wire.status })
            }
        }

        crate::kind::kind!(@resource $group, $version, $name, $plural);
    };
    ($name:ident, $plural:literal, $spec:ty) => {
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $name {
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            pub spec: $spec,
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let mut out = serializer.serialize_struct(stringify!($name), 4)?;
                out.serialize_field("apiVersion", <Self as k8s_openapi::Resource>::API_VERSION)?;
                out.serialize_field("kind", <Self as k8s_openapi::Resource>::KIND)?;
                out.serialize_field("metadata", &self.metadata)?;
                out.serialize_field("spec", &self.spec)?;
                out.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let wire = crate::kind::Wire::<Self, $spec, ()>::deserialize(deserializer)?;
                wire.check().map_err(serde::de::Error::custom)?;
                Ok(Self { metadata: wire.metadata, spec: wire.spec })
            }
        }

        crate::kind::kind!(@resource "kubevirt.io", "v1", $name, $plural);
    };
    (@resource $group:literal, $version:literal, $name:ident, $plural:literal) => {
        impl k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($name);
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::NamespaceResourceScope;
        }

        impl k8s_openapi::ListableResource for $name {
            const LIST_KIND: &'static str = concat!(stringify!($name), "List");
        }

        impl k8s_openapi::Metadata for $name {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use kind;

use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::go;

/// A kind as it is read. Items of a list carry neither `apiVersion` nor `kind`, so both may be absent; wrong ones are refused.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "Spec: Deserialize<'de> + Default, Status: Deserialize<'de> + Default")]
pub(crate) struct Wire<Kind, Spec, Status> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, deserialize_with = "go::null")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "go::null")]
    pub(crate) spec: Spec,
    #[serde(default, deserialize_with = "go::null")]
    pub(crate) status: Status,
    #[serde(skip)]
    _kind: PhantomData<Kind>,
}

#[derive(Debug, thiserror::Error)]
#[error("expected {expected}, found {found}")]
pub(crate) struct WrongKind {
    expected: String,
    found: String,
}

impl<Kind: k8s_openapi::Resource, Spec, Status> Wire<Kind, Spec, Status> {
    pub(crate) fn check(&self) -> Result<(), WrongKind> {
        // Upstream serves its group in an older version as well, with the same fields.
        let is_older = Kind::API_VERSION == "kubevirt.io/v1" && self.api_version == "kubevirt.io/v1alpha3";
        let version_fits = self.api_version.is_empty() || self.api_version == Kind::API_VERSION || is_older;
        if version_fits && (self.kind.is_empty() || self.kind == Kind::KIND) {
            return Ok(());
        }
        Err(WrongKind {
            expected: format!("{} {}", Kind::API_VERSION, Kind::KIND),
            found: format!("{} {}", self.api_version, self.kind),
        })
    }
}
