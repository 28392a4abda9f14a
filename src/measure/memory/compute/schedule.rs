//! Which side runs each node, and what is copied between them: ggml/src/ggml-backend.cpp, `ggml_backend_sched_split_graph`
//! of build 11434, for one device and the CPU, where both can run everything.

use super::graph::{Graph, Id, Op, Side, Tensor};

/// One step of the schedule, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Keeps a tensor until its copy is made.
    Keep(Id),
    /// Runs a node (or sets up a copy) on a side.
    Run(Id, Side),
}

/// The steps, and the side of each leaf.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) steps: Vec<Step>,
    pub(super) leafs: Vec<(Id, Side)>,
}

/// From so many rows at once on, a GPU evaluates what it must have weights copied for (`op_offload_min_batch_size` in
/// ggml/src/ggml-cuda/ggml-cuda.cu; Vulkan's, Metal's and SYCL's are the same).
const WORTH_A_COPY: u64 = 32;

/// Assigns sides and adds copies to the graph. Without a device everything runs on the host; with `offload`, the device takes
/// over what is evaluated for many rows at once though its weights are in RAM.
pub(super) fn schedule(graph: &mut Graph, has_device: bool, offload: bool) -> Schedule {
    if !has_device {
        let steps = graph.nodes.iter().map(|node| Step::Run(*node, Side::Host)).collect();
        return Schedule { steps, leafs: graph.leafs.iter().map(|leaf| (*leaf, Side::Host)).collect() };
    }
    let sides = sides(graph, offload);
    split(graph, &sides)
}

/// Whether some layer's flash attention would not run where the layer is: then llama.cpp does without it in all of them, if it
/// was told `auto` (`llama_context::resolve_fused_ops` in src/llama-context.cpp, which looks at a graph of one token).
pub(super) fn flash_is_elsewhere(graph: &Graph) -> bool {
    let sides = sides(graph, false);
    graph.flash.iter().any(|(id, layer)| sides[*id as usize] != Some(*layer))
}

fn sides(graph: &Graph, offload: bool) -> Vec<Option<Side>> {
    let mut sides: Vec<Option<Side>> = vec![None; graph.tensors.len()];
    for id in graph.leafs.iter().chain(&graph.nodes) {
        sides[*id as usize] = own_side(graph, graph.at(*id), offload);
    }
    spread(graph, &mut sides);
    operands(graph, &mut sides);
    sides
}

/// Pass 1: a tensor's own place, that of what it writes into, or that of its weights.
fn own_side(graph: &Graph, tensor: &Tensor, offload: bool) -> Option<Side> {
    let lives = |id: Id| graph.at(id).lives;
    if let Some(side) = tensor.forced.or(tensor.lives).or(tensor.view_of.and_then(lives)) {
        return Some(side);
    }
    if tensor.input {
        return Some(Side::Host);
    }
    if matches!(tensor.op, Op::Rope | Op::Flash) {
        return None;
    }
    let weights = tensor.src.iter().find(|id| graph.at(**id).weight).and_then(|id| lives(*id));
    let taken_over = offload && tensor.batch >= WORTH_A_COPY && weights == Some(Side::Host);
    if taken_over { Some(Side::Device) } else { weights }
}

/// Pass 2: neighbors take over a side: the device's down, then up; then whatever is left, down and up.
fn spread(graph: &Graph, sides: &mut [Option<Side>]) {
    let run: Vec<Id> = graph.nodes.iter().copied().filter(|id| graph.at(*id).op != Op::View).collect();
    let mut pass = |backwards: bool, device_only: bool| {
        let mut current = None;
        let mut visit = |id: Id| match sides[id as usize] {
            Some(Side::Host) if device_only => current = None,
            Some(side) => current = Some(side),
            None => sides[id as usize] = current,
        };
        if backwards { run.iter().rev().for_each(|id| visit(*id)) } else { run.iter().for_each(|id| visit(*id)) }
    };
    pass(false, true);
    pass(true, true);
    pass(false, false);
    pass(true, false);
}

/// Pass 4: views follow what they view, operands without a side the node that reads them.
fn operands(graph: &Graph, sides: &mut [Option<Side>]) {
    for id in &graph.nodes {
        let tensor = graph.at(*id);
        if sides[*id as usize].is_none() {
            sides[*id as usize] = tensor.view_of.and_then(|root| sides[root as usize]);
        }
        for source in &tensor.src {
            if sides[*source as usize].is_none() {
                let root = graph.at(*source).view_of.and_then(|root| sides[root as usize]);
                sides[*source as usize] = root.or(sides[*id as usize]);
            }
        }
        if sides[*id as usize].is_none() {
            sides[*id as usize] = Some(Side::Device);
        }
    }
}

/// Pass 5: a new split wherever the side changes; what a split reads from the other side is copied at its start.
fn split(graph: &mut Graph, sides: &[Option<Side>]) -> Schedule {
    let side = |id: Id| sides[id as usize].unwrap_or(Side::Host);
    let nodes = graph.nodes.clone();
    let original = graph.tensors.len();
    let mut copies: [Vec<Option<Id>>; 2] = [vec![None; original], vec![None; original]];
    let mut steps = Vec::with_capacity(nodes.len() + 64);
    let first = nodes.iter().find(|id| graph.at(**id).op != Op::View).map_or(Side::Host, |id| side(*id));
    let (mut current, mut start, mut inputs): (Side, usize, Vec<(Id, Id)>) = (first, 0, Vec::new());
    let close = |steps: &mut Vec<Step>, inputs: &mut Vec<(Id, Id)>, current: Side, range: &[Id]| {
        for (source, copy) in inputs.drain(..) {
            steps.extend([Step::Keep(source), Step::Run(copy, current)]);
        }
        steps.extend(range.iter().map(|id| Step::Run(*id, side(*id))));
    };
    for (index, id) in nodes.iter().enumerate() {
        if graph.at(*id).op == Op::View {
            continue;
        }
        let foreign_weight = |source: &Id| graph.at(*source).weight && side(*source) != current;
        let apart = !inputs.is_empty() && graph.at(*id).src.iter().any(foreign_weight);
        if side(*id) != current || apart {
            close(&mut steps, &mut inputs, current, &nodes[start..index]);
            (current, start) = (side(*id), index);
        }
        for operand in 0..graph.at(*id).src.len() {
            let source = graph.at(*id).src[operand];
            if source as usize >= original || side(source) == current {
                continue;
            }
            let known = copies[current as usize][source as usize];
            let copy = known.unwrap_or_else(|| {
                let copy = graph.copy_of(source);
                copies[current as usize][source as usize] = Some(copy);
                inputs.push((source, copy));
                copy
            });
            graph.tensors[*id as usize].src[operand] = copy;
        }
    }
    close(&mut steps, &mut inputs, current, &nodes[start..]);
    let leafs = graph.leafs.iter().map(|leaf| (*leaf, side(*leaf))).collect();
    Schedule { steps, leafs }
}

impl Graph {
    /// A tensor of the same layout with memory of its own (`ggml_dup_tensor_layout`).
    fn copy_of(&mut self, source: Id) -> Id {
        let Tensor { ne, nb, bytes, .. } = *self.at(source);
        self.tensors.push(Tensor::inner(ne, nb, bytes, Op::None, Vec::new()));
        (self.tensors.len() - 1) as Id
    }
}
