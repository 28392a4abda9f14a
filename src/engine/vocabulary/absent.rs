//! The edge of a build without llama.cpp: there is no vocabulary and no template.

use std::convert::Infallible;
use std::path::Path;

use serde_json::Value;

use super::{Facts, TemplateError};

/// Why there is none.
const NOT_BUILT: &str = "this build has no llama.cpp in it (feature `engine`)";

/// A vocabulary; there is none in this build.
pub(super) struct Raw(Infallible);

impl Raw {
    pub(super) fn open(_path: &Path) -> Result<Raw, String> {
        Err(NOT_BUILT.into())
    }

    pub(super) fn lengths(&self) -> Vec<i32> {
        match self.0 {}
    }

    pub(super) fn facts(&self) -> Result<Facts, String> {
        match self.0 {}
    }

    pub(super) fn tokenize(&self, _text: &str, _whole: bool) -> Vec<i32> {
        match self.0 {}
    }
}

/// A chat template; there is none in this build.
pub(super) struct Chat(Infallible);

impl Chat {
    pub(super) fn open(_vocabulary: Option<&Raw>, _source: &str, _ends: (&str, &str)) -> Result<Chat, String> {
        Err(NOT_BUILT.into())
    }

    pub(super) fn render(&self, _request: &Value) -> Result<String, TemplateError> {
        match self.0 {}
    }
}
