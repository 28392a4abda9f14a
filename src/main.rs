//! The command line of windowsill.

fn main() {}
