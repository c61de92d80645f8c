//! What each hierarchy of an ISO volume calls the nodes: 8.3 identifiers in the primary one, UCS-2 in the Joliet one.

use std::collections::{HashSet, VecDeque};

use super::tree::Tree;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hierarchy {
    Primary,
    Joliet,
}

/// The identifiers of one hierarchy, and the orders that follow from them.
pub(super) struct Names {
    pub(super) hierarchy: Hierarchy,
    /// Directories in path table order: by level, then parent, then identifier.
    pub(super) directories: Vec<usize>,
    ids: Vec<Vec<u8>>,
    children: Vec<Vec<usize>>,
}

impl Names {
    pub(super) fn new(tree: &Tree<'_>, hierarchy: Hierarchy) -> Self {
        let mut names = Names {
            hierarchy,
            directories: Vec::new(),
            ids: vec![Vec::new(); tree.len()],
            children: vec![Vec::new(); tree.len()],
        };
        let mut queue = VecDeque::from([0]);
        while let Some(dir) = queue.pop_front() {
            names.directories.push(dir);
            let mut taken = HashSet::new();
            for child in tree.children(dir) {
                let id = unique(tree.name(child), tree.is_dir(child), hierarchy, &taken);
                taken.insert(id.clone());
                names.ids[child] = id;
            }
            let mut children: Vec<usize> = tree.children(dir).collect();
            children.sort_by(|&a, &b| names.ids[a].cmp(&names.ids[b]));
            queue.extend(children.iter().copied().filter(|&c| tree.is_dir(c)));
            names.children[dir] = children;
        }
        names
    }

    pub(super) fn id(&self, node: usize) -> &[u8] {
        &self.ids[node]
    }

    pub(super) fn children(&self, dir: usize) -> &[usize] {
        &self.children[dir]
    }

    /// The position in the path table, counted from one.
    pub(super) fn directory_number(&self, dir: usize) -> u16 {
        self.directories.iter().position(|&d| d == dir).map_or(1, |i| (i + 1) as u16)
    }

    pub(super) fn path_table_size(&self) -> usize {
        self.directories.iter().map(|&d| 8 + self.ids[d].len().max(1).next_multiple_of(2)).sum()
    }
}

/// The first identifier for this name that no sibling has.
fn unique(name: &str, is_dir: bool, hierarchy: Hierarchy, taken: &HashSet<Vec<u8>>) -> Vec<u8> {
    let make = |suffix: &str| match hierarchy {
        Hierarchy::Primary => primary_id(name, is_dir, suffix),
        Hierarchy::Joliet => joliet_id(name, is_dir, suffix),
    };
    let mut id = make("");
    let mut n = 0u32;
    while taken.contains(&id) {
        id = make(&n.to_string());
        n += 1;
    }
    id
}

fn primary_id(name: &str, is_dir: bool, suffix: &str) -> Vec<u8> {
    let clean = |s: &str, max: usize| -> String {
        s.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).take(max).collect()
    };
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if !is_dir && !stem.is_empty() => (stem, extension),
        _ => (name, ""),
    };
    let stem = format!("{}{suffix}", clean(stem, 8usize.saturating_sub(suffix.len())));
    if is_dir { stem.into_bytes() } else { format!("{stem}.{};1", clean(extension, 3)).into_bytes() }
}

fn joliet_id(name: &str, is_dir: bool, suffix: &str) -> Vec<u8> {
    const MAX: usize = 64;
    let version = if is_dir { "" } else { ";1" };
    let room = MAX - suffix.len() - version.len();
    let clean: String = name.chars().map(|c| if c.is_control() || "*/:;?\\".contains(c) { '_' } else { c }).collect();
    let mut units: Vec<u16> = clean.encode_utf16().take(room).collect();
    units.extend(suffix.encode_utf16());
    units.extend(version.encode_utf16());
    units.into_iter().flat_map(u16::to_be_bytes).collect()
}
