//! What became of the test programs, for people and for the next run.

use serde::{Deserialize, Serialize};

use super::Seconds;

/// So many cases are named as the slowest.
const SLOWEST: usize = 12;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub outcomes: Vec<Outcome>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    name: String,
    seconds: f64,
    succeeded: bool,
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Those that say how long they took.
    cases: Vec<Case>,
    #[serde(skip)]
    said: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Case {
    name: String,
    seconds: f64,
}

impl Outcome {
    pub fn new(name: String, seconds: f64, succeeded: bool, said: String) -> Self {
        let (mut passed, mut failed, mut ignored) = (0, 0, 0);
        for line in said.lines().filter(|line| line.starts_with("test result: ")) {
            passed += count(line, "passed");
            failed += count(line, "failed");
            ignored += count(line, "ignored");
        }
        if !succeeded && failed == 0 {
            failed =
                said.lines().filter(|line| line.starts_with("test ") && line.contains(" ... FAILED")).count().max(1);
        }
        let cases = said.lines().filter_map(case).collect();
        Self { name, seconds, succeeded, passed, failed, ignored, cases, said }
    }

    /// One line, and all that it said if it failed.
    pub fn text(&self) -> String {
        let Self { name, seconds, succeeded, passed, failed, said, .. } = self;
        match succeeded {
            true => format!("ok     {seconds:>6.1} s  {name}: {passed} passed\n"),
            false => {
                format!("FAILED {seconds:>6.1} s  {name}: {passed} passed, {failed} failed\n{said}--- end of {name}\n")
            }
        }
    }

    fn failures(&self) -> impl Iterator<Item = &str> {
        let failed = |line: &&str| line.starts_with("test ") && line.contains(" ... FAILED");
        self.said.lines().filter(failed).filter_map(|line| line.split_whitespace().nth(1))
    }
}

impl Report {
    pub fn read(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub fn seconds(&self) -> Seconds {
        self.outcomes.iter().map(|outcome| (outcome.name.clone(), outcome.seconds)).collect()
    }

    pub fn passed(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.succeeded)
    }

    /// The slowest, the failed, and the counts in a form that is read by machines, too.
    pub fn text(&self) -> String {
        let mut slowest: Vec<(&str, &Case)> =
            self.outcomes.iter().flat_map(|o| o.cases.iter().map(|case| (o.name.as_str(), case))).collect();
        slowest.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        let mut out = String::from("\nslowest cases:\n");
        for (program, case) in slowest.into_iter().take(SLOWEST) {
            out += &format!("  {:>6.1} s  {program}: {}\n", case.seconds, case.name);
        }
        for outcome in self.outcomes.iter().filter(|outcome| !outcome.succeeded) {
            let cases: Vec<&str> = outcome.failures().collect();
            out += &format!("FAILED {}: {}\n", outcome.name, cases.join(", "));
        }
        let sum = |number: fn(&Outcome) -> usize| self.outcomes.iter().map(number).sum::<usize>();
        out + &format!("{} passed, {} failed, {} skipped\n", sum(|o| o.passed), sum(|o| o.failed), sum(|o| o.ignored))
    }
}

/// The number before a word: `12 passed`.
fn count(line: &str, word: &str) -> usize {
    let words: Vec<&str> = line.split([' ', ';', '.', ',']).filter(|word| !word.is_empty()).collect();
    words.windows(2).find(|pair| pair[1] == word).and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

/// `test NAME ... ok (1.2 s)`, as the suites say it.
fn case(line: &str) -> Option<Case> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = rest.split_once('(')?.1.strip_suffix(" s)")?.parse().ok()?;
    Some(Case { name: name.into(), seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(succeeded: bool, said: &str) -> Outcome {
        Outcome::new("ferrovirt-e2e/power".into(), 9.0, succeeded, said.into())
    }

    #[test]
    fn results_of_both_harnesses_are_counted() {
        let said = "test stops ... ok (3.2 s)\ntest result: ok. 8 passed\n\
             test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        let outcome = suite(true, said);
        assert_eq!((outcome.passed, outcome.failed, outcome.ignored), (13, 0, 2));
        assert_eq!(outcome.cases.len(), 1);
        assert!(outcome.text().contains("13 passed") && !outcome.text().contains("test stops"));
    }

    #[test]
    fn who_failed_is_named_with_all_that_was_said() {
        let outcome =
            suite(false, "test stops ... FAILED (3.2 s)\nno\ntest host ... FAILED\ntest result: FAILED: stops\n");
        assert_eq!(outcome.failed, 2);
        assert!(outcome.text().contains("no\n"));
        let report = Report { outcomes: vec![outcome, suite(true, "test result: ok. 8 passed\n")] };
        assert!(!report.passed());
        let text = report.text();
        assert!(text.contains("FAILED ferrovirt-e2e/power: stops, host\n"), "{text}");
        assert!(text.ends_with("8 passed, 2 failed, 0 skipped\n"), "{text}");
        // One that died before it could say anything failed all the same.
        assert_eq!(suite(false, "").failed, 1);
    }

    #[test]
    fn the_next_run_reads_what_this_one_wrote() {
        let report = Report { outcomes: vec![suite(true, "test stops ... ok (3.2 s)\ntest result: ok. 1 passed\n")] };
        let read = Report::read(&report.json()).unwrap();
        assert_eq!(read.seconds().get("ferrovirt-e2e/power"), Some(&9.0));
        assert!(Report::read("{}").is_none());
    }
}
