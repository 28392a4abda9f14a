//! The engine of a build without llama.cpp: says so, whatever it is asked.

use std::convert::Infallible;
use std::path::Path;

use super::VocabularyError;
use crate::conversation::Tokens;

/// The vocabulary of a model; there is none in this build.
#[derive(Debug)]
pub struct Vocabulary(Infallible);

impl Vocabulary {
    /// Always [`VocabularyError::NotBuilt`].
    ///
    /// # Errors
    /// Always.
    pub fn load(_path: &Path) -> Result<Vocabulary, VocabularyError> {
        Err(VocabularyError::NotBuilt)
    }

    /// The tokens of a prompt.
    pub fn count(&self, _text: &str) -> Tokens {
        match self.0 {}
    }

    /// The prompt in pieces that are counted apart.
    pub fn pieces(&self, _text: &str) -> Vec<(usize, Tokens)> {
        match self.0 {}
    }

    /// The tokens of a part of a prompt.
    pub fn part(&self, _text: &str) -> Tokens {
        match self.0 {}
    }

    /// The texts of the tokens that end a turn or a text.
    pub fn enders(&self) -> &[String] {
        match self.0 {}
    }

    /// The tokens of a prompt, the whole in one go.
    pub fn tokenize(&self, _text: &str) -> Vec<i32> {
        match self.0 {}
    }

    /// The model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        match self.0 {}
    }

    /// The model's chat template for requests with tools.
    pub fn tool_template(&self) -> Option<&str> {
        match self.0 {}
    }

    /// The text of the token that begins a prompt.
    pub fn bos(&self) -> &str {
        match self.0 {}
    }

    /// The text of the token that ends a turn.
    pub fn eos(&self) -> &str {
        match self.0 {}
    }

    /// Whether the tokenizer puts the first token there itself.
    pub fn adds_bos(&self) -> bool {
        match self.0 {}
    }

    /// Whether the tokenizer puts the last token there itself.
    pub fn adds_eos(&self) -> bool {
        match self.0 {}
    }
}
