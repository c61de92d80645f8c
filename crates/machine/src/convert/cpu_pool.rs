//! Host CPUs that are the machine's alone, and how its cores are laid onto them.
//!
//! A guest core whose threads share a host core is best, one whose threads are at least in one NUMA cell second best; only
//! machines that do not mirror the host's cells may have cores across cells.

use std::collections::{BTreeSet, VecDeque};

use super::HostTopology;
use crate::spec::Topology;

pub(super) struct CpuPool {
    cells: Vec<Cell>,
    threads: usize,
    cores: usize,
    crosses_cells: bool,
    available: usize,
}

/// What is left of a NUMA cell of the host.
#[derive(Default)]
struct Cell {
    /// Host cores with at least as many threads left as a guest core has.
    cores: VecDeque<Vec<u32>>,
    /// Threads of host cores that are too small.
    fragments: VecDeque<u32>,
}

impl CpuPool {
    pub(super) fn new(guest: &Topology, host: &HostTopology, cpu_set: &[u32], crosses_cells: bool) -> Self {
        let threads = usize::try_from(guest.threads.max(1)).unwrap_or(1);
        let cores = usize::try_from(guest.cores.saturating_mul(guest.sockets)).unwrap_or(usize::MAX);
        let given: BTreeSet<u32> = cpu_set.iter().copied().collect();
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        let mut cells = Vec::new();
        for host_cell in &host.numa_cells {
            let mut cell = Cell::default();
            for cpu in &host_cell.cpus {
                if seen.contains(&cpu.id) {
                    continue;
                }
                let siblings = if cpu.siblings.is_empty() { std::slice::from_ref(&cpu.id) } else { &cpu.siblings };
                seen.extend(siblings);
                let core: Vec<u32> = siblings.iter().copied().filter(|thread| given.contains(thread)).collect();
                cell.put(core, threads);
            }
            cells.push(cell);
        }
        Self { cells, threads, cores, crosses_cells, available: cpu_set.len() }
    }

    /// One host CPU per guest thread, in the guest's order. Upstream forgives a core that misses some of its threads.
    pub(super) fn fit_cores(&mut self, forgives: bool) -> Result<Vec<u32>, String> {
        let threads = self.threads;
        let mut placed = Vec::new();
        let mut left = self.cores;
        for cell in &mut self.cells {
            while left > 0
                && let Some(mut core) = cell.cores.pop_front()
            {
                let rest = core.split_off(threads);
                cell.put_first(rest, threads);
                placed.extend(core);
                left -= 1;
            }
        }
        for cell in &mut self.cells {
            while left > 0 && cell.fragments.len() >= threads {
                placed.extend(cell.fragments.drain(..threads));
                left -= 1;
            }
        }
        let mut threads_left = left * threads;
        if self.crosses_cells {
            for cell in &mut self.cells {
                let take = threads_left.min(cell.fragments.len());
                placed.extend(cell.fragments.drain(..take));
                threads_left -= take;
            }
        }
        let left = if forgives { threads_left / threads } else { threads_left.div_ceil(threads) };
        match left {
            0 => Ok(placed),
            _ if self.crosses_cells || self.available < self.cores * threads => {
                Err(format!("the node gave {} CPUs, which is too few for {left} of the guest's cores", self.available))
            }
            _ => Err(format!("{left} of the guest's cores would lie across NUMA cells of the node")),
        }
    }

    /// A host CPU for something else than a vCPU.
    pub(super) fn fit_thread(&mut self) -> Option<u32> {
        let threads = self.threads;
        let cell = self.cells.iter_mut().find(|cell| !cell.cores.is_empty() || !cell.fragments.is_empty())?;
        cell.fragments.pop_front().or_else(|| {
            let mut core = cell.cores.pop_front()?;
            let rest = core.split_off(1);
            cell.put_first(rest, threads);
            core.pop()
        })
    }
}

impl Cell {
    fn put(&mut self, core: Vec<u32>, threads: usize) {
        if core.len() >= threads {
            self.cores.push_back(core);
        } else {
            self.fragments.extend(core);
        }
    }

    fn put_first(&mut self, core: Vec<u32>, threads: usize) {
        if core.len() >= threads {
            self.cores.push_front(core);
        } else {
            self.fragments.extend(core);
        }
    }
}
