//! Chat templates: every real one renders, before and after rewriting.
