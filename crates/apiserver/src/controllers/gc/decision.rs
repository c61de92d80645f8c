//! What is to be done with one object, from what it is and what its owners and dependents are. Nothing else is remembered: who
//! asks again later gets the answer of then.

use super::super::{FOREGROUND, ORPHAN};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerState {
    /// It cannot be said: its kind is not served, or is of a namespace while the dependent is of the cluster.
    Unknown,
    /// Not there, or another one of the same name.
    Absent,
    /// Goes, and lets its dependents live.
    Orphaning,
    /// Goes after its dependents.
    Waiting,
    Solid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DependentState {
    /// Its owner must not go before it.
    pub blocking: bool,
    /// Is itself being deleted after its dependents.
    pub foreground: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub deleting: bool,
    /// Its finalizers.
    pub orphan: bool,
    pub foreground: bool,
    /// By uid.
    pub owners: Vec<(String, OwnerState)>,
    /// One of the owners must not go before it.
    pub blocks: bool,
    pub dependents: Vec<DependentState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Delete {
        policy: &'static str,
    },
    /// By uid.
    DropOwners(Vec<String>),
    /// Its owners need not wait for it.
    Unblock,
    DropFinalizer(&'static str),
}

pub fn decide(facts: &Facts) -> Action {
    let owners = |wanted: &[OwnerState]| -> Vec<String> {
        let found = facts.owners.iter().filter(|(_, state)| wanted.contains(state));
        found.map(|(uid, _)| uid.clone()).collect()
    };
    let orphaned = owners(&[OwnerState::Orphaning]);
    if !orphaned.is_empty() {
        return Action::DropOwners(orphaned);
    }
    if facts.deleting {
        return match (facts.orphan, facts.foreground) {
            (true, _) if facts.dependents.is_empty() => Action::DropFinalizer(ORPHAN),
            (false, true) if facts.dependents.iter().all(|d| !d.blocking) => Action::DropFinalizer(FOREGROUND),
            _ => Action::Nothing,
        };
    }
    let gone = owners(&[OwnerState::Absent, OwnerState::Waiting]);
    if gone.is_empty() || !owners(&[OwnerState::Unknown]).is_empty() {
        return Action::Nothing;
    }
    if !owners(&[OwnerState::Solid]).is_empty() {
        // Those that wait would wait for ever for one that stays.
        return Action::DropOwners(gone);
    }
    let waited_for = !owners(&[OwnerState::Waiting]).is_empty();
    if waited_for && !facts.dependents.is_empty() {
        // Owners that own each other would wait for each other; this one lets go. Its change brings it back here.
        let circle = facts.dependents.iter().any(|d| d.foreground);
        return if circle && facts.blocks { Action::Unblock } else { Action::Delete { policy: "Foreground" } };
    }
    let policy = match (facts.orphan, facts.foreground) {
        (true, _) => "Orphan",
        (_, true) => "Foreground",
        _ => "Background",
    };
    Action::Delete { policy }
}

#[cfg(test)]
mod tests {
    use super::OwnerState::{Absent, Orphaning, Solid, Unknown, Waiting};
    use super::*;

    #[test]
    fn every_state_has_one_next_step() {
        const FREE: DependentState = DependentState { blocking: false, foreground: false };
        const BLOCKING: DependentState = DependentState { blocking: true, foreground: false };
        const GOING: DependentState = DependentState { blocking: true, foreground: true };
        let delete = |policy| Action::Delete { policy };
        let drop = |uids: &[&str]| Action::DropOwners(uids.iter().map(|u| (*u).to_owned()).collect());
        // deleting, finalizers, owners, whether it blocks one of them, dependents
        type Row = (bool, &'static [&'static str], &'static [OwnerState], bool, &'static [DependentState]);
        let rows: Vec<(Row, Action)> = vec![
            ((false, &[], &[], false, &[]), Action::Nothing),
            ((false, &[], &[Solid], false, &[]), Action::Nothing),
            ((false, &[], &[Absent], false, &[]), delete("Background")),
            ((false, &[], &[Absent, Absent], false, &[BLOCKING]), delete("Background")),
            ((false, &[ORPHAN], &[Absent], false, &[FREE]), delete("Orphan")),
            ((false, &[FOREGROUND], &[Absent], false, &[FREE]), delete("Foreground")),
            ((false, &[], &[Solid, Absent], false, &[]), drop(&["1"])),
            ((false, &[], &[Solid, Waiting], false, &[]), drop(&["1"])),
            ((false, &[], &[Unknown, Absent], false, &[]), Action::Nothing),
            ((false, &[], &[Waiting], true, &[]), delete("Background")),
            ((false, &[], &[Waiting], true, &[FREE]), delete("Foreground")),
            ((false, &[], &[Waiting], true, &[GOING]), Action::Unblock),
            ((false, &[], &[Waiting], false, &[GOING]), delete("Foreground")),
            ((false, &[], &[Orphaning, Absent], false, &[]), drop(&["0"])),
            ((true, &[], &[Orphaning], false, &[]), drop(&["0"])),
            ((true, &[], &[Absent], false, &[]), Action::Nothing),
            ((true, &[FOREGROUND], &[], false, &[]), Action::DropFinalizer(FOREGROUND)),
            ((true, &[FOREGROUND], &[], false, &[FREE]), Action::DropFinalizer(FOREGROUND)),
            ((true, &[FOREGROUND], &[], false, &[FREE, BLOCKING]), Action::Nothing),
            ((true, &[ORPHAN], &[], false, &[]), Action::DropFinalizer(ORPHAN)),
            ((true, &[ORPHAN], &[], false, &[FREE]), Action::Nothing),
            ((true, &[ORPHAN, FOREGROUND], &[], false, &[FREE]), Action::Nothing),
            ((true, &["example.com/x"], &[], false, &[]), Action::Nothing),
        ];
        for ((deleting, finalizers, owners, blocks, dependents), expected) in rows {
            let facts = Facts {
                deleting,
                orphan: finalizers.contains(&ORPHAN),
                foreground: finalizers.contains(&FOREGROUND),
                owners: owners.iter().enumerate().map(|(i, state)| (i.to_string(), *state)).collect(),
                blocks,
                dependents: dependents.to_vec(),
            };
            assert_eq!(decide(&facts), expected, "{facts:?}");
        }
    }
}
