//! How much memory a schedule takes: ggml/src/ggml-alloc.c of build 11434, best fit with one growing chunk a side.

use super::graph::{Graph, Id, Op, Side};
use super::schedule::{Schedule, Step};

/// Both sides' alignment in llama.cpp's CPU and RPC buffers.
const ALIGNMENT: u64 = 32;

/// The memory of one side: free blocks by offset, the last of which is endless.
#[derive(Debug)]
struct Chunk {
    free: Vec<(u64, u64)>,
    peak: u64,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk { free: vec![(0, u64::MAX / 2)], peak: 0 }
    }

    /// The smallest free block that is large enough, the last of several; else the end (`ggml_dyn_tallocr_alloc`).
    fn take(&mut self, size: u64) -> u64 {
        let last = self.free.len() - 1;
        let fits = self.free[..last].iter().enumerate().filter(|(_, block)| block.1 >= size);
        let best =
            fits.min_by_key(|(index, block)| (block.1, std::cmp::Reverse(*index))).map_or(last, |(index, _)| index);
        let block = &mut self.free[best];
        let offset = block.0;
        block.0 = block.0.saturating_add(size);
        block.1 = block.1.saturating_sub(size);
        if block.1 == 0 && best != last {
            self.free.remove(best);
        }
        self.peak = self.peak.max(offset.saturating_add(size));
        offset
    }

    /// Gives a block back and joins it with a neighbor, and then that with its own (`ggml_dyn_tallocr_free_bytes`). What
    /// has no bytes leaves an empty block behind, across which blocks are not joined: that is how ggml does it.
    fn give(&mut self, offset: u64, size: u64) {
        let end = offset.saturating_add(size);
        let ends = |block: &(u64, u64)| block.0.saturating_add(block.1);
        let Some(at) = self.free.iter().position(|block| ends(block) == offset || end == block.0) else {
            // Empty blocks upset the order now and then: ggml looks for the first that is not before.
            let at = self.free.iter().position(|block| block.0 >= offset).unwrap_or(self.free.len());
            return self.free.insert(at, (offset, size));
        };
        let before = ends(&self.free[at]) == offset;
        let block = &mut self.free[at];
        *block = (if before { block.0 } else { offset }, block.1.saturating_add(size));
        let first = if before { Some(at) } else { at.checked_sub(1) };
        let Some(first) = first else { return };
        if self.free.get(first + 1).is_some_and(|next| next.0 == ends(&self.free[first])) {
            self.free[first].1 = self.free[first].1.saturating_add(self.free[first + 1].1);
            self.free.remove(first + 1);
        }
    }
}

/// What the allocator knows of a tensor.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    children: u32,
    views: u32,
    allocated: bool,
    side: usize,
    offset: u64,
    size: u64,
}

/// The peak of the device's and of the host's memory, in bytes.
pub(super) fn peaks(graph: &Graph, schedule: &Schedule) -> (u64, u64) {
    let mut run =
        Run { graph, entries: vec![Entry::default(); graph.tensors.len()], chunks: [Chunk::new(), Chunk::new()] };
    for (leaf, side) in &schedule.leafs {
        run.allocate(*leaf, *side);
    }
    for step in &schedule.steps {
        match step {
            Step::Keep(id) => run.entries[*id as usize].children += 1,
            Step::Run(id, _) => run.count(*id),
        }
    }
    for step in &schedule.steps {
        match step {
            Step::Keep(id) => run.release(*id),
            Step::Run(id, side) => run.node(*id, *side),
        }
    }
    (run.chunks[Side::Device as usize].peak, run.chunks[Side::Host as usize].peak)
}

struct Run<'a> {
    graph: &'a Graph,
    entries: Vec<Entry>,
    chunks: [Chunk; 2],
}

impl Run<'_> {
    fn count(&mut self, id: Id) {
        let tensor = self.graph.at(id);
        if let Some(root) = tensor.view_of.filter(|_| tensor.op != Op::None) {
            self.entries[root as usize].views += 1;
        }
        for source in &tensor.src {
            self.entries[*source as usize].children += 1;
        }
    }

    fn node(&mut self, id: Id, side: Side) {
        let graph = self.graph;
        for source in &graph.at(id).src {
            self.allocate(*source, side);
        }
        self.allocate(id, side);
        for source in &graph.at(id).src {
            self.release(*source);
        }
    }

    /// `ggml_gallocr_allocate_node`.
    fn allocate(&mut self, id: Id, side: Side) {
        let tensor = self.graph.at(id);
        if self.entries[id as usize].allocated || tensor.lives.is_some() || tensor.view_of.is_some() {
            return;
        }
        let size = aligned(tensor.bytes);
        let reused = if matches!(tensor.op, Op::InPlace | Op::Rope) { self.reusable(id) } else { None };
        let entry = match reused {
            Some(parent) => {
                let old = self.entries[parent as usize];
                self.entries[parent as usize].allocated = false;
                // A parent of the same layout is as large.
                Entry { allocated: true, ..old }
            }
            None => {
                let offset = self.chunks[side as usize].take(size);
                Entry { allocated: true, side: side as usize, offset, size, ..Entry::default() }
            }
        };
        let counted = self.entries[id as usize];
        self.entries[id as usize] = Entry { children: counted.children, views: counted.views, ..entry };
    }

    /// The first operand whose memory a node may take over: of the same layout, with no other reader.
    fn reusable(&self, id: Id) -> Option<Id> {
        let tensor = self.graph.at(id);
        tensor.src.iter().copied().find(|source| {
            let (parent, entry) = (self.graph.at(*source), &self.entries[*source as usize]);
            entry.allocated
                && !parent.output
                && parent.ne == tensor.ne
                && parent.nb == tensor.nb
                && entry.children == 1
                && entry.views == 0
        })
    }

    /// One reader less; frees what nobody reads any more.
    fn release(&mut self, id: Id) {
        let entry = &mut self.entries[id as usize];
        entry.children = entry.children.saturating_sub(1);
        if entry.children != 0 || entry.views != 0 {
            return;
        }
        let free = match self.graph.at(id).view_of {
            Some(root) => {
                let root_entry = &mut self.entries[root as usize];
                root_entry.views = root_entry.views.saturating_sub(1);
                (root_entry.views == 0 && root_entry.children == 0).then_some(root)
            }
            None => Some(id),
        };
        let Some(free) = free.filter(|id| self.entries[*id as usize].allocated && !self.graph.at(*id).output) else {
            return;
        };
        let entry = &mut self.entries[free as usize];
        entry.allocated = false;
        let (side, offset, size) = (entry.side, entry.offset, entry.size);
        self.chunks[side].give(offset, size);
    }
}

fn aligned(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}
