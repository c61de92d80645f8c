//! The input of the ISO writer as a tree of directories and files.

use std::collections::BTreeMap;

use super::IsoError;

/// Nodes by index; 0 is the root. Children come after their parents.
pub(super) struct Tree<'a> {
    nodes: Vec<Node<'a>>,
}

struct Node<'a> {
    name: String,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// `None` for a directory.
    data: Option<&'a [u8]>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(files: &'a [(String, Vec<u8>)]) -> Result<Self, IsoError> {
        let mut tree = Tree { nodes: vec![Node::directory(String::new(), 0)] };
        // Sorted, so that the order of the caller's list does not change the volume.
        let mut sorted: Vec<&(String, Vec<u8>)> = files.iter().collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        for (path, data) in sorted {
            tree.insert(path, data)?;
        }
        Ok(tree)
    }

    fn insert(&mut self, path: &str, data: &'a [u8]) -> Result<(), IsoError> {
        let names: Vec<&str> = path.split('/').collect();
        let plain = |n: &&str| !n.is_empty() && *n != "." && *n != ".." && !n.contains('\0');
        if !names.iter().all(plain) {
            return Err(IsoError::Path(path.to_string()));
        }
        if names.iter().any(|n| n.len() > 255) {
            return Err(IsoError::NameTooLong(path.to_string()));
        }
        if u32::try_from(data.len()).is_err() {
            return Err(IsoError::TooBig { path: path.to_string(), size: data.len() as u64 });
        }
        let mut at = 0;
        for (i, name) in names.iter().enumerate() {
            let last = i + 1 == names.len();
            at = match self.nodes[at].children.get(*name) {
                Some(&child) if !last && self.nodes[child].data.is_none() => child,
                Some(_) => return Err(IsoError::Duplicate(path.to_string())),
                None => {
                    let child = self.nodes.len();
                    self.nodes[at].children.insert((*name).to_string(), child);
                    self.nodes.push(Node::directory((*name).to_string(), at));
                    child
                }
            };
        }
        self.nodes[at].data = Some(data);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// The root is its own parent.
    pub(super) fn parent(&self, node: usize) -> usize {
        self.nodes[node].parent
    }

    pub(super) fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.nodes[node].children.values().copied()
    }

    pub(super) fn is_dir(&self, node: usize) -> bool {
        self.nodes[node].data.is_none()
    }

    /// The link count of a directory: its name, its `.`, and the `..` of each directory in it.
    pub(super) fn links(&self, node: usize) -> u32 {
        2 + self.children(node).filter(|&c| self.is_dir(c)).count() as u32
    }

    pub(super) fn files(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|&n| !self.is_dir(n))
    }

    pub(super) fn data(&self, node: usize) -> &'a [u8] {
        self.nodes[node].data.unwrap_or_default()
    }
}

impl Node<'_> {
    fn directory(name: String, parent: usize) -> Self {
        Node { name, parent, children: BTreeMap::new(), data: None }
    }
}
