//! The numbers, beside each other and beside the goals.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Plan;
use crate::load::Round;

/// What was measured of one build.
#[derive(Debug, Clone)]
pub struct Figures {
    pub without: Vec<Round>,
    pub with: Vec<Round>,
    /// One new service, without and with.
    pub services: [Duration; 2],
    pub filling: Duration,
    /// Resident, in KiB: when it was filled, and after the load.
    pub filled: u64,
    pub memory: u64,
    /// Quotas that say what is true.
    pub quotas: usize,
}

pub struct Table {
    pub plan: Plan,
    pub ours: Figures,
    pub older: Option<Figures>,
}

struct Row {
    key: &'static str,
    name: String,
    value: fn(&Figures) -> f64,
    goal: Option<(&'static str, Met)>,
}

type Met = fn(&Figures, Plan) -> bool;

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn creates(rounds: &[Round]) -> f64 {
    median(rounds.iter().map(|round| round.creates))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn ratio(figures: &Figures) -> f64 {
    // Pair by pair: what else the machine did, it did to both.
    median(figures.with.iter().zip(&figures.without).map(|(with, without)| with.creates / without.creates))
}

/// What the load adds to the server's memory: the objects that it created, and no more than this for all else.
fn is_bounded(figures: &Figures, plan: Plan) -> bool {
    const PER_OBJECT: u64 = 8;
    const ALL_ELSE: u64 = 256 << 10;
    figures.memory <= figures.filled + ALL_ELSE + PER_OBJECT * (plan.creates * plan.rounds) as u64
}

impl Table {
    fn rows(&self) -> Vec<Row> {
        let plan = self.plan;
        vec![
            Row {
                key: "createsWithout",
                name: format!("creates a second, {} clients, without", plan.clients),
                value: |f| creates(&f.without),
                goal: None,
            },
            Row { key: "createsWith", name: "the same with".into(), value: |f| creates(&f.with), goal: None },
            Row {
                key: "ratio",
                name: "with / without".into(),
                value: ratio,
                goal: Some(("≥ 0.90", |f, _| ratio(f) >= 0.9)),
            },
            Row {
                key: "medianWithout",
                name: "one create, median of medians, ms, without".into(),
                value: |f| median(f.without.iter().map(|round| millis(round.median))),
                goal: None,
            },
            Row {
                key: "medianWith",
                name: "the same with".into(),
                value: |f| median(f.with.iter().map(|round| millis(round.median))),
                goal: None,
            },
            Row {
                key: "p99With",
                name: "one create, median of p99, ms, with".into(),
                value: |f| median(f.with.iter().map(|round| millis(round.p99))),
                goal: None,
            },
            Row {
                key: "costWithout",
                name: "processor time for a create, µs, without".into(),
                value: |f| median(f.without.iter().map(|round| round.cost.as_secs_f64() * 1e6)),
                goal: None,
            },
            Row {
                key: "costWith",
                name: "the same with".into(),
                value: |f| median(f.with.iter().map(|round| round.cost.as_secs_f64() * 1e6)),
                goal: None,
            },
            Row {
                key: "serviceWithout",
                name: "one service, p50, ms, without".into(),
                value: |f| millis(f.services[0]),
                goal: None,
            },
            Row {
                key: "serviceWith",
                name: format!("the same with {} services", plan.services),
                value: |f| millis(f.services[1]),
                goal: None,
            },
            Row { key: "filling", name: "filling, s".into(), value: |f| f.filling.as_secs_f64(), goal: None },
            Row {
                key: "memoryFilled",
                name: "memory when filled, MiB".into(),
                value: |f| f.filled as f64 / 1024.0,
                goal: None,
            },
            Row {
                key: "memory",
                name: "memory after the load, MiB".into(),
                value: |f| f.memory as f64 / 1024.0,
                goal: Some(("bounded", is_bounded)),
            },
            Row {
                key: "quotas",
                name: format!("quotas of {} that say what is true", plan.namespaces),
                value: |f| f.quotas as f64,
                goal: Some(("all", |f, plan| f.quotas == plan.namespaces)),
            },
        ]
    }

    pub fn met(&self) -> bool {
        self.rows().iter().all(|row| row.goal.is_none_or(|(_, met)| met(&self.ours, self.plan)))
    }

    pub fn text(&self) -> String {
        let mut out = format!("{:<48}{:>12}{:>16}{:>12}\n", "", "this build", "the other", "goal");
        for row in self.rows() {
            let older =
                self.older.as_ref().map_or_else(|| "-".to_owned(), |older| format!("{:.2}", (row.value)(older)));
            let (goal, met) = match row.goal {
                None => ("", ""),
                Some((goal, met)) => (goal, if met(&self.ours, self.plan) { "met" } else { "missed" }),
            };
            let _ = writeln!(out, "{:<48}{:>12.2}{older:>16}{goal:>12}  {met}", row.name, (row.value)(&self.ours));
        }
        out
    }

    pub fn json(&self) -> String {
        let rows: serde_json::Map<String, Value> = self
            .rows()
            .into_iter()
            .map(|row| {
                let goal = row.goal.map(|(goal, met)| json!({"is": goal, "met": met(&self.ours, self.plan)}));
                let older = self.older.as_ref().map(row.value);
                (row.key.to_owned(), json!({"value": (row.value)(&self.ours), "other": older, "goal": goal}))
            })
            .collect();
        format!("{:#}\n", Value::Object(rows))
    }
}
