//! Writes a header: metadata and a table of tensors, without their data. What it writes is what [`super::Gguf`] and
//! llama.cpp read (ggml/docs/gguf.md, version 3, little-endian).

/// Numbers of the kinds of values in a file.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// A header in the making: one call an entry, in the order in which they are to stand there.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    keys: u64,
    metadata: Vec<u8>,
    tensors: u64,
    table: Vec<u8>,
}

impl Writer {
    /// An entry of a kind (its number in the format) with these bytes as they are, right or wrong.
    pub fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Writer {
        self.keys += 1;
        text(&mut self.metadata, key.as_bytes());
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend(value);
        self
    }

    /// An unsigned number of 32 bits.
    pub fn number(self, key: &str, value: u32) -> Writer {
        self.entry(key, U32, &value.to_le_bytes())
    }

    /// A float of 32 bits.
    pub fn float(self, key: &str, value: f32) -> Writer {
        self.entry(key, F32, &value.to_le_bytes())
    }

    /// A boolean.
    pub fn flag(self, key: &str, value: bool) -> Writer {
        self.entry(key, BOOL, &[u8::from(value)])
    }

    /// A text.
    pub fn text(self, key: &str, value: &str) -> Writer {
        let mut bytes = Vec::new();
        text(&mut bytes, value.as_bytes());
        self.entry(key, TEXT, &bytes)
    }

    /// An array of texts.
    pub fn texts<T: AsRef<[u8]>>(self, key: &str, values: &[T]) -> Writer {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| text(&mut bytes, value.as_ref()));
        self.array(key, TEXT, values.len(), &bytes)
    }

    /// An array of signed numbers of 32 bits.
    pub fn integers(self, key: &str, values: &[i32]) -> Writer {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, I32, values.len(), &bytes)
    }

    /// An array of floats of 32 bits.
    pub fn floats(self, key: &str, values: &[f32]) -> Writer {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, F32, values.len(), &bytes)
    }

    fn array(self, key: &str, kind: u32, length: usize, values: &[u8]) -> Writer {
        let head = [&kind.to_le_bytes()[..], &(length as u64).to_le_bytes()].concat();
        self.entry(key, ARRAY, &[&head, values].concat())
    }

    /// A row of the table of tensors, with data from byte 0 on: `kind` is the number of its type in ggml's list.
    pub fn tensor(self, name: &str, dims: &[u64], kind: u32) -> Writer {
        self.tensor_at(name, dims, kind, 0)
    }

    /// The same, with data from this byte on behind the header, which is filled up to a multiple of 32 bytes.
    pub fn tensor_at(mut self, name: &str, dims: &[u64], kind: u32, at: u64) -> Writer {
        self.tensors += 1;
        text(&mut self.table, name.as_bytes());
        self.table.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| self.table.extend(dim.to_le_bytes()));
        self.table.extend(kind.to_le_bytes());
        self.table.extend(at.to_le_bytes());
        self
    }

    /// The whole.
    pub fn bytes(&self) -> Vec<u8> {
        let head = [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &self.tensors.to_le_bytes(), &self.keys.to_le_bytes()];
        [&head.concat(), &self.metadata, &self.table].map(Vec::as_slice).concat()
    }
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}
