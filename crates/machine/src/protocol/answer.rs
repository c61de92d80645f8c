//! What a launcher answers: with a type since version 2, as text before.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ExecResult, GuestCall, GuestReport, ProtocolError, Request};

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    Ok(Answer),
    Error(ProtocolError),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Answer {
    /// It was done, or will be: the machine's state tells.
    Done {},
    DomainXml {
        xml: String,
    },
    Report {
        report: Box<GuestReport>,
    },
    Exec {
        result: ExecResult,
    },
    /// In base64.
    Screenshot {
        png: String,
    },
    /// In libvirt's names.
    Stats {
        counters: Map<String, Value>,
    },
}

/// Which kind of answer a request has. Whoever hears text has to know what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Done,
    DomainXml,
    Report,
    Exec,
    Screenshot,
    Stats,
}

impl Request {
    pub fn shape(&self) -> Shape {
        match self {
            Self::DomainXml {} => Shape::DomainXml,
            Self::Guest { call: GuestCall::Report {} } => Shape::Report,
            Self::Guest { call: GuestCall::Exec { .. } } => Shape::Exec,
            Self::Guest { call: GuestCall::Screenshot {} } => Shape::Screenshot,
            Self::Guest { call: GuestCall::Stats {} } => Shape::Stats,
            _ => Shape::Done,
        }
    }
}

impl Answer {
    pub fn shape(&self) -> Shape {
        match self {
            Self::Done {} => Shape::Done,
            Self::DomainXml { .. } => Shape::DomainXml,
            Self::Report { .. } => Shape::Report,
            Self::Exec { .. } => Shape::Exec,
            Self::Screenshot { .. } => Shape::Screenshot,
            Self::Stats { .. } => Shape::Stats,
        }
    }

    /// As version 1 says it.
    pub fn into_text(self) -> serde_json::Result<Option<String>> {
        Ok(match self {
            Self::Done {} => None,
            Self::DomainXml { xml: text } | Self::Screenshot { png: text } => Some(text),
            Self::Report { report } => Some(serde_json::to_string(&report)?),
            Self::Exec { result } => Some(serde_json::to_string(&result)?),
            Self::Stats { counters } => Some(serde_json::to_string(&counters)?),
        })
    }

    /// From what version 1 says.
    pub fn from_text(shape: Shape, text: Option<String>) -> serde_json::Result<Self> {
        let text = text.unwrap_or_default();
        Ok(match shape {
            Shape::Done => Self::Done {},
            Shape::DomainXml => Self::DomainXml { xml: text },
            Shape::Screenshot => Self::Screenshot { png: text },
            Shape::Report => Self::Report { report: serde_json::from_str(&text)? },
            Shape::Exec => Self::Exec { result: serde_json::from_str(&text)? },
            Shape::Stats => Self::Stats { counters: serde_json::from_str(&text)? },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn answers_are_the_same_in_both_versions() {
        let counters = Map::from_iter([("cpu.time".to_owned(), 7.into())]);
        let result = ExecResult { exit_code: 3, stdout: "a".into(), stderr: String::new() };
        for answer in [
            Answer::Done {},
            Answer::DomainXml { xml: "<domain/>".into() },
            Answer::Report { report: Box::new(GuestReport { agent_version: "7.2".into(), ..Default::default() }) },
            Answer::Exec { result },
            Answer::Screenshot { png: "iVBO".into() },
            Answer::Stats { counters },
        ] {
            let text = answer.clone().into_text().unwrap();
            assert_eq!(Answer::from_text(answer.shape(), text).unwrap(), answer);
            let json = serde_json::to_string(&Outcome::Ok(answer.clone())).unwrap();
            assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), Outcome::Ok(answer), "{json}");
        }
        assert!(Answer::from_text(Shape::Stats, None).is_err(), "nothing is no counters");
    }
}
