//! What a server or a dry run said about one load, made to correct the formulas for every other window.

use super::{Cost, Model, Refused, Settings, Source, Split};

/// What was seen at one load, in bytes: a server's log lines (`… compute buffer size = … MiB`), or a dry run. A field
/// that was not seen is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Observed {
    /// The model's buffers.
    pub weights: Option<Split>,
    /// The scratch buffers.
    pub compute: Option<Split>,
}

/// The constants by which formulas and observation differ, for one model, backend, build and set of flags. They hold for
/// every other window, as what grows with the window is known exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Correction {
    weights: Option<Split>,
    compute_device: i128,
    compute_host: i128,
    /// The micro-batch it was seen at: the constants of compute grow with it.
    ubatch: u64,
}

impl Observed {
    /// The constants that bring [`super::cost`] to what was seen under `settings`.
    pub fn correction(&self, model: &Model, settings: &Settings) -> Result<Correction, Refused> {
        let formula = super::cost(model, settings)?;
        let ubatch = settings.window(model).ubatch;
        let off = |seen: u64, said: u64| i128::from(seen) - i128::from(said);
        let (device, host) = match self.compute {
            Some(seen) => (off(seen.device, formula.compute.device), off(seen.host, formula.compute.host)),
            None => (0, 0),
        };
        Ok(Correction { weights: self.weights, compute_device: device, compute_host: host, ubatch })
    }
}

impl Correction {
    /// What a window costs, corrected. Settings may differ from those observed in the window and the micro-batch.
    pub fn cost(&self, model: &Model, settings: &Settings) -> Result<Cost, Refused> {
        let mut cost = super::cost(model, settings)?;
        let ubatch = settings.window(model).ubatch;
        let moved = |said: u64, off: i128| {
            let off = off * i128::from(ubatch) / i128::from(self.ubatch.max(1));
            u64::try_from((i128::from(said) + off).max(0)).unwrap_or(u64::MAX)
        };
        cost.compute.device = moved(cost.compute.device, self.compute_device);
        cost.compute.host = moved(cost.compute.host, self.compute_host);
        cost.weights = self.weights.unwrap_or(cost.weights);
        cost.source = Source::Observed;
        Ok(cost)
    }
}
