//! Histograms by label values.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use crate::{Family, Kind, Sample};

/// Histograms of one name, one for each set of label values.
#[derive(Debug)]
pub struct Histograms {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    bounds: &'static [f64],
    series: Mutex<BTreeMap<Vec<String>, Series>>,
}

#[derive(Debug, Clone, Default)]
struct Series {
    /// How many fell into each bucket, the last of which has no bound.
    counts: Vec<u64>,
    sum: f64,
}

impl Histograms {
    pub const fn new(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Self {
        Self { name, help, labels, bounds, series: Mutex::new(BTreeMap::new()) }
    }

    /// `values` stand in the order of the labels.
    pub fn observe(&self, values: &[&str], value: f64) {
        let key = values.iter().map(|value| (*value).to_owned()).collect();
        let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let series = all.entry(key).or_default();
        series.counts.resize(self.bounds.len() + 1, 0);
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        if let Some(count) = series.counts.get_mut(bucket) {
            *count += 1;
        }
        series.sum += value;
    }

    pub fn family(&self) -> Family {
        let mut family = Family { name: self.name, help: self.help, kind: Kind::Histogram, samples: vec![] };
        for (values, series) in &*self.series.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels: Vec<(&'static str, String)> = self.labels.iter().copied().zip(values.iter().cloned()).collect();
            let mut total = 0;
            for (index, count) in series.counts.iter().enumerate() {
                total += count;
                let bound = self.bounds.get(index).map_or_else(|| "+Inf".to_owned(), ToString::to_string);
                let mut labels = labels.clone();
                labels.push(("le", bound));
                family.samples.push(Sample { suffix: "_bucket", labels, value: total as f64 });
            }
            family.samples.push(Sample { suffix: "_sum", labels: labels.clone(), value: series.sum });
            family.samples.push(Sample { suffix: "_count", labels, value: total as f64 });
        }
        family
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let histograms = Histograms::new("h", "help", &["phase"], &[1.0, 5.0]);
        for value in [0.5, 1.0, 3.0, 99.0] {
            histograms.observe(&["Running"], value);
        }
        let text = crate::to_text(&[histograms.family()]);
        let expected = "# HELP h help\n# TYPE h histogram\n\
            h_bucket{phase=\"Running\",le=\"1\"} 2\nh_bucket{phase=\"Running\",le=\"5\"} 3\n\
            h_bucket{phase=\"Running\",le=\"+Inf\"} 4\nh_sum{phase=\"Running\"} 103.5\nh_count{phase=\"Running\"} 4\n";
        assert_eq!(text, expected);
    }
}
