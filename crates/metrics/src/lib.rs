//! Metrics in Prometheus' text format: families that are made anew at every scrape, and histograms that grow.
//!
//! Pure: no clock, no server, no global registry. Whoever knows something renders a [`Family`]; whoever serves `/metrics`
//! joins the families and writes them with [`to_text`].

mod histogram;
mod text;

pub use histogram::Histograms;
pub use text::{CONTENT_TYPE, to_text};

/// Names and types of KubeVirt's metrics, a line each. What we tell is told under these names.
pub const UPSTREAM: &str = include_str!("../upstream.txt");

/// Families whose name or type upstream does not have.
pub fn strangers(families: &[Family]) -> Vec<String> {
    let known = |family: &Family| {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let line = format!("{} {kind}", family.name);
        UPSTREAM.lines().any(|upstream| upstream == line)
    };
    families.iter().filter(|family| !known(family)).map(|family| family.name.to_owned()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// All samples of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// `_bucket`, `_sum` or `_count` of a histogram, else empty.
    pub suffix: &'static str,
    /// Labels with an empty value are left out, as upstream does.
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
}

impl Family {
    pub fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: Kind::Gauge, samples: vec![] }
    }

    pub fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, help, kind: Kind::Counter, samples: vec![] }
    }

    pub fn add(&mut self, labels: impl IntoIterator<Item = (&'static str, String)>, value: f64) {
        self.samples.push(Sample { suffix: "", labels: labels.into_iter().collect(), value });
    }

    /// The family with one sample more.
    pub fn with(mut self, labels: impl IntoIterator<Item = (&'static str, String)>, value: f64) -> Self {
        self.add(labels, value);
        self
    }
}
