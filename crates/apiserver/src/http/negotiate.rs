//! Content negotiation: what the body is written in, and what the client wants back.

use http::{HeaderMap, header};

use crate::status::ApiError;

pub const JSON: &str = "application/json";
pub const YAML: &str = "application/yaml";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// The shape of the answer: the object itself or one of the transformations of `meta.k8s.io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Object,
    Table,
    PartialMetadata,
    PartialMetadataList,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accept {
    pub encoding: Encoding,
    pub shape: Shape,
    /// `meta.k8s.io` version of a transformation (`v1` or `v1beta1`).
    pub meta_version: &'static str,
}

/// One clause of an Accept header.
struct Clause<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    fn parameter(&self, key: &str) -> Option<&str> {
        self.parameters.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
}

fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let mut found: Vec<(f32, Clause<'_>)> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().filter(|m| !m.is_empty())?;
            let parameters: Vec<_> = parts.filter_map(|p| p.split_once('=')).collect();
            let quality = parameters.iter().find(|(k, _)| *k == "q").and_then(|(_, v)| v.parse().ok()).unwrap_or(1.0);
            Some((quality, Clause { media, parameters }))
        })
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, clause)| clause).collect()
}

/// Picks the first clause that can be served.
///
/// `protobuf` says whether the resource has a protobuf form; custom resources have none.
pub fn accept(headers: &HeaderMap, protobuf: bool) -> Result<Accept, ApiError> {
    let plain = Accept { encoding: Encoding::Json, shape: Shape::Object, meta_version: "v1" };
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Ok(plain);
    }
    for clause in &clauses {
        let encoding = match clause.media {
            JSON | "*/*" | "application/*" => Encoding::Json,
            YAML => Encoding::Yaml,
            PROTOBUF if protobuf => Encoding::Protobuf,
            _ => continue,
        };
        let shape = match clause.parameter("as") {
            None => Shape::Object,
            Some("Table") => Shape::Table,
            Some("PartialObjectMetadata") => Shape::PartialMetadata,
            Some("PartialObjectMetadataList") => Shape::PartialMetadataList,
            Some(_) => continue,
        };
        let meta_version = match (shape, clause.parameter("g"), clause.parameter("v")) {
            (Shape::Object, _, _) | (_, Some("meta.k8s.io"), Some("v1")) => "v1",
            (_, Some("meta.k8s.io"), Some("v1beta1")) => "v1beta1",
            _ => continue,
        };
        // Tables and partial metadata are only made as JSON (or YAML).
        if encoding == Encoding::Protobuf && shape != Shape::Object {
            continue;
        }
        return Ok(Accept { encoding, shape, meta_version });
    }
    let known = if protobuf { [JSON, YAML, PROTOBUF].join(", ") } else { [JSON, YAML].join(", ") };
    let error = ApiError::not_acceptable(&known);
    // A known encoding of something unknown is told without details, as upstream does.
    let encoded = clauses.iter().any(|clause| [JSON, YAML, PROTOBUF].contains(&clause.media));
    Err(if encoded { error } else { error.without_subject() })
}

/// True if some clause asks for exactly this media type with these parameters (aggregated discovery).
pub fn wants(headers: &HeaderMap, media: &str, parameters: &[(&str, &str)]) -> bool {
    clauses(headers).iter().any(|c| c.media == media && parameters.iter().all(|(k, v)| c.parameter(k) == Some(*v)))
}

/// The media type of the request body, without parameters.
pub fn content_type(headers: &HeaderMap) -> &str {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split(';').next())
        .map(str::trim)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_the_first_servable_clause() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let cases = [
            ("", true, Some((Encoding::Json, Shape::Object))),
            ("*/*", false, Some((Encoding::Json, Shape::Object))),
            (kubectl, false, Some((Encoding::Json, Shape::Table))),
            ("application/vnd.kubernetes.protobuf,application/json", true, Some((Encoding::Protobuf, Shape::Object))),
            ("application/vnd.kubernetes.protobuf,application/json", false, Some((Encoding::Json, Shape::Object))),
            ("application/vnd.kubernetes.protobuf", false, None),
            ("application/json;q=0.1, application/yaml", false, Some((Encoding::Yaml, Shape::Object))),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                true,
                Some((Encoding::Json, Shape::PartialMetadataList)),
            ),
            ("application/json;as=Nonsense;g=meta.k8s.io;v=v1", true, None),
        ];
        for (value, protobuf, expected) in cases {
            let mut headers = HeaderMap::new();
            if !value.is_empty() {
                headers.insert(header::ACCEPT, value.parse().unwrap());
            }
            let got = accept(&headers, protobuf).ok().map(|a| (a.encoding, a.shape));
            assert_eq!(got, expected, "{value}");
        }
    }
}
