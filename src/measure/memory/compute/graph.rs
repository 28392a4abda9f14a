//! A graph of tensors as ggml builds it: shapes, what views what, and in which order nodes run. No data.
//!
//! It mirrors ggml/src/ggml.c (build 11434) as far as sizes and the order of nodes go. Sizes saturate: a header that lies
//! gives a large number, never a panic.

/// The number of a tensor in its graph.
pub(super) type Id = u32;

/// What an operation means for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// A leaf: a weight, a cache or an input.
    None,
    /// View, reshape, permute or transpose: takes no memory and is run nowhere.
    View,
    /// Writes into another tensor, which it is a view of (`set_rows`, `cpy`).
    Write,
    /// May take over the memory of an operand (ggml/src/ggml-alloc.c:22-50).
    InPlace,
    /// Likewise, and does not follow its weights to their device (ggml/src/ggml-backend.cpp, `rope`).
    Rope,
    /// Flash attention: does not follow its sinks.
    Flash,
    /// Anything else.
    Fresh,
}

/// Where something lives or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// The GPU.
    Device,
    /// RAM, the CPU.
    Host,
}

/// A tensor.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    /// Elements in each dimension.
    pub(super) ne: [u64; 4],
    /// Bytes from one element to the next in each dimension.
    pub(super) nb: [u64; 4],
    /// Bytes it takes if it is allocated, or copied.
    pub(super) bytes: u64,
    /// Rows that it is evaluated for at once: what makes it worth a copy of its weights (`get_op_batch_size` in
    /// ggml/src/ggml-cuda/ggml-cuda.cu).
    pub(super) batch: u64,
    pub(super) op: Op,
    pub(super) src: Vec<Id>,
    /// What it is a view of: never itself a view.
    pub(super) view_of: Option<Id>,
    /// Filled before the graph runs.
    pub(super) input: bool,
    /// Read after the graph ran: never freed.
    pub(super) output: bool,
    /// Where it lives, if it is not allocated with the graph.
    pub(super) lives: Option<Side>,
    /// Whether it is a weight, which operations follow.
    pub(super) weight: bool,
    /// Where it must run, if llama.cpp says so.
    pub(super) forced: Option<Side>,
}

impl Tensor {
    /// A tensor with memory of its own that nobody fills before the graph runs or reads after it.
    pub(super) fn inner(ne: [u64; 4], nb: [u64; 4], bytes: u64, op: Op, src: Vec<Id>) -> Tensor {
        Tensor {
            ne,
            nb,
            bytes,
            batch: ne[1].saturating_mul(ne[2]).saturating_mul(ne[3]),
            op,
            src,
            view_of: None,
            input: false,
            output: false,
            lives: None,
            weight: false,
            forced: None,
        }
    }
}

/// Tensors, and those of them to run, in order.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) tensors: Vec<Tensor>,
    pub(super) nodes: Vec<Id>,
    pub(super) leafs: Vec<Id>,
    /// Flash attention, and the side of its layer.
    pub(super) flash: Vec<(Id, Side)>,
    /// The side of the layer that is being built.
    pub(super) layer: Option<Side>,
    visited: Vec<bool>,
}

/// Bytes of an f32, an i32; of an i64; of an f16.
pub(super) const F32: u64 = 4;
pub(super) const I64: u64 = 8;
pub(super) const F16: u64 = 2;

impl Graph {
    pub(super) fn at(&self, id: Id) -> &Tensor {
        &self.tensors[id as usize]
    }

    pub(super) fn ne(&self, id: Id) -> [u64; 4] {
        self.at(id).ne
    }

    fn push(&mut self, ne: [u64; 4], element: u64, op: Op, src: Vec<Id>) -> Id {
        let mut nb = [element; 4];
        for dim in 1..4 {
            nb[dim] = nb[dim - 1].saturating_mul(ne[dim - 1]);
        }
        let bytes = nb[3].saturating_mul(ne[3]);
        self.add(Tensor::inner(ne, nb, bytes, op, src))
    }

    fn add(&mut self, tensor: Tensor) -> Id {
        self.tensors.push(tensor);
        self.visited.push(false);
        // Some millions of tensors at most: layers are bounded.
        (self.tensors.len() - 1) as Id
    }

    /// Something filled before each run.
    pub(super) fn input(&mut self, ne: [u64; 4], element: u64) -> Id {
        let id = self.push(ne, element, Op::None, Vec::new());
        self.tensors[id as usize].input = true;
        id
    }

    /// A weight that the file does not have: where its bytes matter, it is taken for floats.
    pub(super) fn weight(&mut self, ne: [u64; 4], side: Side) -> Id {
        let id = self.push(ne, F32, Op::None, Vec::new());
        let tensor = &mut self.tensors[id as usize];
        (tensor.weight, tensor.lives) = (true, Some(side));
        id
    }

    /// A weight of the file.
    pub(super) fn stored_weight(&mut self, (ne, bytes): ([u64; 4], u64), side: Side) -> Id {
        let id = self.weight(ne, side);
        self.tensors[id as usize].bytes = bytes;
        id
    }

    fn in_batches_of(&mut self, id: Id, batch: u64) -> Id {
        self.tensors[id as usize].batch = batch;
        id
    }

    /// A cache: lives outside the graph, but operations do not follow it. `row` are the bytes of one row of `ne[0]`.
    pub(super) fn cache(&mut self, ne: [u64; 4], row: u64, side: Side) -> Id {
        let id = self.push(ne, F32, Op::None, Vec::new());
        let tensor = &mut self.tensors[id as usize];
        tensor.lives = Some(side);
        tensor.nb[0] = row.checked_div(ne[0]).unwrap_or(0).max(1);
        tensor.nb[1] = row;
        for dim in 2..4 {
            tensor.nb[dim] = tensor.nb[dim - 1].saturating_mul(ne[dim - 1]);
        }
        tensor.bytes = tensor.nb[3].saturating_mul(ne[3]);
        id
    }

    /// A result of its own shape, in floats.
    pub(super) fn fresh(&mut self, ne: [u64; 4], src: &[Id]) -> Id {
        self.push(ne, F32, Op::Fresh, src.to_vec())
    }

    /// The same in another width of element.
    pub(super) fn fresh_of(&mut self, ne: [u64; 4], element: u64, src: &[Id]) -> Id {
        self.push(ne, element, Op::Fresh, src.to_vec())
    }

    /// An operation on elements, of the shape of `src[0]`, that may take its memory over.
    pub(super) fn each(&mut self, src: &[Id]) -> Id {
        self.like(src, Op::InPlace)
    }

    /// The same in another width of element.
    pub(super) fn each_of(&mut self, element: u64, src: &[Id]) -> Id {
        self.push(self.ne(src[0]), element, Op::InPlace, src.to_vec())
    }

    /// A leaf that lives with the graph.
    pub(super) fn constant(&mut self, ne: [u64; 4]) -> Id {
        self.push(ne, F32, Op::None, Vec::new())
    }

    /// A result of the shape of `src[0]` with memory of its own.
    pub(super) fn same(&mut self, src: &[Id]) -> Id {
        self.like(src, Op::Fresh)
    }

    pub(super) fn rope(&mut self, src: &[Id]) -> Id {
        let id = self.like(src, Op::Rope);
        self.in_batches_of(id, self.ne(id)[2])
    }

    fn like(&mut self, src: &[Id], op: Op) -> Id {
        self.push(self.ne(src[0]), F32, op, src.to_vec())
    }

    /// `ggml_mul_mat`.
    pub(super) fn matmul(&mut self, a: Id, b: Id) -> Id {
        let (x, y) = (self.ne(a), self.ne(b));
        let id = self.fresh([x[1], y[1], y[2], y[3]], &[a, b]);
        self.in_batches_of(id, y[1])
    }

    /// `ggml_mul_mat_id`: `a` is `[in, out, experts]`, `ids` `[used, tokens]`.
    pub(super) fn matmul_id(&mut self, a: Id, b: Id, ids: Id) -> Id {
        let (x, y, i) = (self.ne(a), self.ne(b), self.ne(ids));
        let id = self.fresh([x[1], i[0], y[2], 1], &[a, b, ids]);
        self.in_batches_of(id, y[2])
    }

    /// `ggml_get_rows`.
    pub(super) fn get_rows(&mut self, a: Id, ids: Id) -> Id {
        let (x, i) = (self.ne(a), self.ne(ids));
        let id = self.fresh([x[0], i[0], i[1], i[2]], &[a, ids]);
        self.in_batches_of(id, 0)
    }

    /// A view with its own shape; strides only matter where a result is compared with it.
    pub(super) fn view(&mut self, of: Id, ne: [u64; 4]) -> Id {
        let nb = self.at(of).nb;
        self.view_strided(of, ne, nb)
    }

    /// A view with its own shape and strides.
    pub(super) fn view_strided(&mut self, of: Id, ne: [u64; 4], nb: [u64; 4]) -> Id {
        let root = self.at(of).view_of.unwrap_or(of);
        // ggml_nbytes: from the first element to the end of the last.
        let span = (0..4).map(|dim| ne[dim].saturating_sub(1).saturating_mul(nb[dim]));
        let bytes = if ne.contains(&0) { 0 } else { span.fold(nb[0], u64::saturating_add) };
        self.add(Tensor { view_of: Some(root), ..Tensor::inner(ne, nb, bytes, Op::View, vec![of]) })
    }

    /// A contiguous reshape of a contiguous tensor.
    pub(super) fn reshape(&mut self, of: Id, ne: [u64; 4]) -> Id {
        let mut nb = [self.at(of).nb[0]; 4];
        for dim in 1..4 {
            nb[dim] = nb[dim - 1].saturating_mul(ne[dim - 1]);
        }
        self.view_strided(of, ne, nb)
    }

    /// `ggml_permute`: dimension `i` of the source becomes dimension `to[i]`.
    pub(super) fn permute(&mut self, of: Id, to: [usize; 4]) -> Id {
        let (ne, nb) = (self.ne(of), self.at(of).nb);
        let (mut new_ne, mut new_nb) = (ne, nb);
        for (from, to) in to.into_iter().enumerate() {
            (new_ne[to], new_nb[to]) = (ne[from], nb[from]);
        }
        self.view_strided(of, new_ne, new_nb)
    }

    /// Writes into a part of `into`: `ggml_set_rows` and `ggml_cpy`.
    pub(super) fn write(&mut self, into: Id, src: &[Id]) -> Id {
        let root = self.at(into).view_of.unwrap_or(into);
        let mut all = src.to_vec();
        all.push(into);
        let Tensor { ne, nb, bytes, .. } = *self.at(into);
        self.add(Tensor { view_of: Some(root), ..Tensor::inner(ne, nb, bytes, Op::Write, all) })
    }

    /// An operation on elements that leaves its result in its first operand (`ggml_add_inplace`).
    pub(super) fn each_into(&mut self, into: Id, other: Id) -> Id {
        let write = self.write(into, &[]);
        self.tensors[write as usize].src = vec![into, other];
        write
    }

    /// `ggml_flash_attn_ext`; the result is `[values, heads, tokens, streams]`.
    pub(super) fn flash(&mut self, ne: [u64; 4], src: &[Id]) -> Id {
        let id = self.push(ne, F32, Op::Flash, src.to_vec());
        self.flash.extend(self.layer.map(|side| (id, side)));
        id
    }

    pub(super) fn set_output(&mut self, id: Id) {
        self.tensors[id as usize].output = true;
    }

    pub(super) fn force(&mut self, id: Id, side: Side) {
        self.tensors[id as usize].forced = Some(side);
    }

    /// Adds a tensor and all it needs to the nodes to run, operands first, from the first to the last
    /// (`ggml_build_forward_expand`).
    pub(super) fn expand(&mut self, id: Id) {
        let mut stack = vec![(id, 0)];
        if std::mem::replace(&mut self.visited[id as usize], true) {
            return;
        }
        while let Some((node, next)) = stack.pop() {
            if let Some(source) = self.tensors[node as usize].src.get(next).copied() {
                stack.push((node, next + 1));
                if !std::mem::replace(&mut self.visited[source as usize], true) {
                    stack.push((source, 0));
                }
            } else if self.tensors[node as usize].op == Op::None {
                self.leafs.push(node);
            } else {
                self.nodes.push(node);
            }
        }
    }
}
