//! A sweep of the thresholds.
use ::windowsill::conversation::Tokens;
use ::windowsill::store::Store;

use super::Material;

pub(crate) fn table(_window: Tokens, _material: &Material, _store: &Store) {}
