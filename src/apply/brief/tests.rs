//! Tests of the brief as a whole.
