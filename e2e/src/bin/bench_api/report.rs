//! The numbers, beside each other and beside the goals.

use std::fmt::Write as _;
use std::time::Duration;

use ferrovirt_e2e::figures;
use serde_json::{Value, json};

use crate::Plan;

/// What was measured of one server.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub serial: Duration,
    /// A second.
    pub creates: f64,
    pub list: Duration,
    pub watch: Duration,
    /// Resident, in KiB.
    pub memory: u64,
    pub ready: Duration,
}

pub struct Table {
    pub plan: Plan,
    /// Of the peer.
    pub name: &'static str,
    pub ours: Figures,
    pub peer: Figures,
}

struct Row {
    key: &'static str,
    name: String,
    unit: &'static str,
    ours: f64,
    peer: f64,
    goal: &'static str,
    met: bool,
}

impl Table {
    fn rows(&self) -> Vec<Row> {
        let Self { plan, ours, peer, .. } = self;
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let mib = |kib: u64| kib as f64 / 1024.0;
        let row = |key, name, unit, ours, peer, goal, met: fn(f64, f64) -> bool| Row {
            key,
            name,
            unit,
            ours,
            peer,
            goal,
            met: met(ours, peer),
        };
        vec![
            row(
                "createsPerSecond",
                format!("creates a second, {} clients", plan.clients),
                "/s",
                ours.creates,
                peer.creates,
                "≥ 3 times (5 wished)",
                |ours, peer| ours >= 3.0 * peer,
            ),
            row(
                "serialCreateP50",
                "serial create, p50".into(),
                "ms",
                ms(ours.serial),
                ms(peer.serial),
                "≤ peer's",
                |ours, peer| ours <= peer,
            ),
            row(
                "list",
                format!("list of {} objects", plan.objects),
                "ms",
                ms(ours.list),
                ms(peer.list),
                "≤ a third",
                |ours, peer| ours <= peer / 3.0,
            ),
            row(
                "watchP99",
                format!("watch delivery, p99, {} watchers", plan.watchers),
                "ms",
                ms(ours.watch),
                ms(peer.watch),
                "≤ half",
                |ours, peer| ours <= peer / 2.0,
            ),
            row("memory", "memory".into(), "MiB", mib(ours.memory), mib(peer.memory), "≤ a fifth", |ours, peer| {
                ours <= peer / 5.0
            }),
            row(
                "ready",
                "ready with them stored".into(),
                "ms",
                ms(ours.ready),
                ms(peer.ready),
                "≤ 300 ms",
                |ours, _| ours <= 300.0,
            ),
        ]
    }

    pub fn met(&self) -> bool {
        self.rows().iter().all(|row| row.met)
    }

    /// For the comparison of two builds.
    pub fn note(&self) -> anyhow::Result<()> {
        for row in self.rows() {
            figures::note_of("base", &row.name, row.unit, row.peer)?;
            figures::note_of("this", &row.name, row.unit, row.ours)?;
        }
        Ok(())
    }

    pub fn text(&self) -> String {
        let mut out = format!("{:<36}{:>14}{:>25}{:>8}{:>24}\n", "", "ferrovirt", self.name, "ratio", "goal");
        for row in self.rows() {
            let value = |number: f64| format!("{number:.1} {}", row.unit);
            let _ = writeln!(
                out,
                "{:<36}{:>14}{:>25}{:>8.2}{:>24}  {}",
                row.name,
                value(row.ours),
                value(row.peer),
                row.ours / row.peer,
                row.goal,
                if row.met { "met" } else { "missed" }
            );
        }
        out
    }

    pub fn json(&self) -> String {
        let rows: serde_json::Map<String, Value> = self
            .rows()
            .into_iter()
            .map(|row| {
                let value = json!({"unit": row.unit, "ferrovirt": row.ours, "kubernetes": row.peer, "goal": row.goal, "met": row.met});
                (row.key.to_owned(), value)
            })
            .collect();
        format!("{:#}\n", Value::Object(rows))
    }
}
