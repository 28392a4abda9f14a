//! What `windowsill fit` shows: the memory a model needs at each window, and the largest window that fits.

use serde_json::{Value, json};

use super::Subject;
use super::dry_run::DryRunner;
use super::fits::{Case, Fits, Where};
use crate::gguf::CacheTypes;
use crate::measure::hardware::room::{DeviceRoom, Room, size};
use crate::measure::memory::{Cost, GpuLayers, Source};
use crate::plain;

/// How figures are found out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    /// By formulas, from the header alone; scratch buffers are an upper bound.
    Formula,
    /// By a dry run of llama.cpp, or not at all.
    DryRun,
    /// By a dry run where there can be one, else by formulas.
    #[default]
    Auto,
}

/// What somebody wants to know otherwise than the server or the defaults have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// The windows to show (tokens); empty for powers of two.
    pub ctx: Vec<u64>,
    /// The types of cached keys and values.
    pub kv_type: Option<CacheTypes>,
    /// How many requests at once.
    pub parallel: Option<u64>,
    /// They share one window.
    pub unified: bool,
    /// Tokens evaluated at once.
    pub ubatch: Option<u64>,
    /// Without flash attention.
    pub no_flash_attn: bool,
    /// Layers on the GPU.
    pub gpu_layers: Option<GpuLayers>,
    /// The bytes that may be used, instead of what is free: of the GPU where layers go there, else of RAM.
    pub memory: Option<u64>,
    /// How the figures are found out.
    pub method: Method,
}

/// One window.
#[derive(Debug, Clone)]
pub struct Row {
    /// The window asked for (tokens).
    pub n_ctx: u64,
    /// What it costs.
    pub cost: Cost,
    /// Where it would go.
    pub place: Where,
    /// What of it the GPU does not hold (bytes), where there is one.
    pub spills: u64,
}

/// The answer.
#[derive(Debug, Clone)]
pub struct Report {
    /// The model's name.
    pub name: String,
    /// Its architecture.
    pub arch: String,
    /// What it was trained for (tokens).
    pub trained: u64,
    /// Window by window.
    pub rows: Vec<Row>,
    /// The largest that fit.
    pub fits: Fits,
    /// What may be used.
    pub room: Room,
    /// What else should be known.
    pub notes: Vec<String>,
}

/// `25769803776`, `24GiB`, `24G` (binary), `24GB` (decimal).
///
/// # Errors
/// What was expected.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024f64.powi(2),
        "g" | "gib" => 1024f64.powi(3),
        "t" | "tib" => 1024f64.powi(4),
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err(format!("`{text}` is no amount of memory; write bytes, or 24GiB")),
    };
    let number = number.replace('_', "");
    if scale == 1.0 {
        return number.parse().map_err(|_| format!("`{text}` is no whole number of bytes"));
    }
    match number.parse::<f64>() {
        // Saturates where nobody has so much.
        Ok(number) => Ok((number * scale) as u64),
        Err(_) => Err(format!("`{text}` is no amount of memory; write bytes, or 24GiB")),
    }
}

impl Subject {
    /// As somebody wishes it.
    pub fn with(mut self, wish: &Wish) -> Subject {
        let settings = &mut self.setup.settings;
        if let Some(parallel) = wish.parallel {
            settings.parallel = parallel.max(1);
            settings.outputs = settings.parallel;
            settings.cache.unified = wish.unified;
        }
        settings.cache.unified |= wish.unified;
        settings.cache.types = wish.kv_type.unwrap_or(settings.cache.types);
        settings.n_ubatch = wish.ubatch.unwrap_or(settings.n_ubatch);
        settings.flash_attn &= !wish.no_flash_attn;
        settings.gpu_layers = wish.gpu_layers.unwrap_or(settings.gpu_layers);
        self.room = given_room(self.room, wish);
        self
    }

    /// The report for a name.
    ///
    /// # Errors
    /// Why llama.cpp would refuse such settings.
    pub fn report(&self, name: &str, wish: &Wish) -> Result<Report, String> {
        let by_dry_runs = match (wish.method, self.dry_runner()) {
            (Method::Formula, _) => return self.told(name, wish, None),
            (_, Ok(runner)) => self.told(name, wish, Some(&runner)),
            (_, Err(why)) => Err(why),
        };
        match (wish.method, by_dry_runs) {
            (Method::Auto, Err(why)) => {
                let mut told = self.told(name, wish, None)?;
                told.notes.push(format!("by formulas, for there was no dry run: {why}"));
                Ok(told)
            }
            (_, told) => told.map_err(|why| format!("no dry run: {why}")),
        }
    }

    /// Dry runs of this model.
    pub(super) fn dry_runner(&self) -> Result<DryRunner, String> {
        let program = self.program.as_deref().ok_or("where this program is cannot be told")?;
        DryRunner::of(program, &self.file.path)
    }

    fn told(&self, name: &str, wish: &Wish, runner: Option<&DryRunner>) -> Result<Report, String> {
        let case = self.case().with_dry_runs(runner);
        let rows: Result<Vec<Row>, String> =
            windows(self.model.trained, &wish.ctx).into_iter().map(|n| row(&case, n)).collect();
        let (rows, fits) = (rows?, case.fits()?);
        Ok(Report {
            name: name.to_owned(),
            arch: self.model.arch.clone(),
            trained: self.model.trained,
            notes: notes(&case, &rows, &fits),
            fits,
            room: self.room.clone(),
            rows,
        })
    }
}

/// The room, with what was given in place of what was measured.
fn given_room(room: Room, wish: &Wish) -> Room {
    let on_gpu = match wish.gpu_layers {
        Some(layers) => layers != GpuLayers::None,
        None => !room.devices.is_empty(),
    };
    let mut room = match wish.memory {
        Some(bytes) if on_gpu => {
            let mut because = vec![format!("GPU: {} were given", size(bytes))];
            because.extend(room.because.first().filter(|_| !room.unified).cloned());
            let host = if room.unified { 0 } else { room.host };
            Room { devices: vec![DeviceRoom { name: "GPU".into(), bytes }], host, unified: room.unified, because }
        }
        Some(bytes) => Room::given(bytes),
        None => room,
    };
    if on_gpu && room.devices.is_empty() {
        // Somebody asks of a GPU that this machine does not have: what it would need is told, and that it does not fit.
        room.devices.push(DeviceRoom { name: "no GPU".into(), bytes: 0 });
        room.because.push("there is no GPU here; name its memory with --memory".into());
    }
    if !on_gpu && wish.memory.is_none() {
        room.devices.clear();
    }
    room
}

fn windows(trained: u64, asked: &[u64]) -> Vec<u64> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let mut all: Vec<u64> = (12..40).map(|power| 1u64 << power).take_while(|n| *n < trained).collect();
    all.push(trained);
    all
}

fn row(case: &Case<'_>, n_ctx: u64) -> Result<Row, String> {
    let (cost, place) = case.place(n_ctx)?;
    let device = if case.room.devices.is_empty() { 0 } else { cost.device().saturating_sub(case.room.device_bytes()) };
    Ok(Row { n_ctx, cost, place, spills: device })
}

/// What stands beside the table.
fn notes(case: &Case<'_>, rows: &[Row], fits: &Fits) -> Vec<String> {
    let mut notes = case.setup.notes.clone();
    notes.extend(case.setup.sharing());
    let window = fits.best.map_or(case.model.trained, u64::from);
    notes.extend(case.beside(window));
    for row in rows {
        match &row.cost.source {
            Source::Assumed(what) => notes.push(format!("not exact: {what}")),
            Source::DryRun(what) => notes.push(format!("figures {what}")),
            Source::Formula => notes.push(format!(
                "figures by llama.cpp's own formulas (build {}), from the file's header",
                case.setup.settings.build.0
            )),
        }
        notes.extend(row.cost.notes.iter().cloned());
    }
    let mut seen = std::collections::HashSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    notes
}

impl Report {
    /// `--json`.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({
            "model": self.name, "arch": self.arch, "trained": self.trained, "rows": rows,
            "num_ctx": {"gpu": self.fits.gpu, "gpu_and_ram": self.fits.gpu_and_ram, "because": self.fits.because},
        })
    }

    /// For people: a table, the answer in one line, and what should be known.
    pub fn text(&self) -> String {
        // Names are those of servers and of files from anywhere.
        let (name, arch) = (plain::line(&self.name), plain::line(&self.arch));
        let mut page = format!("{name} ({arch}, trained for {} tokens)\n\n", self.trained);
        let gpu = !self.room.devices.is_empty();
        page += &format!(
            "{:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}  {}{}\n",
            "NUM_CTX",
            "WEIGHTS",
            "KV",
            "STATE",
            "COMPUTE",
            "OUTPUT",
            "TOTAL",
            "FITS",
            if gpu { "          SPILLS" } else { "" }
        );
        for row in &self.rows {
            page += &row.text(gpu);
        }
        let n = |n: Option<u32>| n.map_or_else(|| "none".to_owned(), |n| n.to_string());
        page += "\nnum_ctx: ";
        page += &match (gpu, self.fits.gpu, self.fits.gpu_and_ram) {
            (false, _, all) => format!("{} in RAM", n(all)),
            (true, gpu, all) => format!("{} on the GPU, {} on GPU and RAM", n(gpu), n(all)),
        };
        page += &format!("; {}\n", plain::line(&self.fits.because));
        for line in self.room.because.iter().chain(&self.notes) {
            page += &format!("- {}\n", plain::line(line));
        }
        page
    }
}

impl Row {
    fn json(&self) -> Value {
        let cost = &self.cost;
        json!({
            "n_ctx": self.n_ctx, "weights_bytes": cost.weights.total(), "kv_bytes": cost.kv.total(),
            "state_bytes": cost.state.total(), "compute_bytes": cost.compute.total(), "output_bytes": cost.output,
            "total_bytes": cost.total(), "source": cost.source.as_str(), "fits": self.place != Where::Nowhere,
        })
    }

    fn text(&self, gpu: bool) -> String {
        let cost = &self.cost;
        let parts = [
            cost.weights.total(),
            cost.kv.total(),
            cost.state.total(),
            cost.compute.total(),
            cost.output,
            cost.total(),
        ];
        let mut line = format!("{:>9}", self.n_ctx);
        for part in parts {
            line += &format!(" {:>10}", if part == 0 { "-".to_owned() } else { size(part) });
        }
        line += &format!("  {:<13}", self.place.as_str());
        if gpu && self.spills > 0 {
            line += &format!(" {}", size(self.spills));
        }
        format!("{}\n", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory_are_read_as_people_write_them() {
        let cases = [
            ("25769803776", Some(25_769_803_776)),
            ("24GiB", Some(24 << 30)),
            ("24 g", Some(24 << 30)),
            ("1.5G", Some(3 << 29)),
            ("16GB", Some(16_000_000_000)),
            ("512MiB", Some(512 << 20)),
            ("1_000", Some(1000)),
            ("1.5", None),
            ("much", None),
            ("", None),
            ("-1", None),
            ("24 GiBs", None),
        ];
        for (text, want) in cases {
            assert_eq!(bytes(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn windows_are_shown_up_to_the_trained_length() {
        assert_eq!(windows(40960, &[]), [4096, 8192, 16384, 32768, 40960]);
        assert_eq!(windows(4096, &[]), [4096]);
        assert_eq!(windows(2048, &[]), [2048]);
        assert_eq!(windows(8192, &[100, 99999]), [100, 99999]);
    }
}
