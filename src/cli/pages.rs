//! `windowsill pages DIR`: man pages and shell completions, for packages. Hidden: people get them with a package.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use crate::Failure;

/// Writes them into `man` and `completions`.
pub(crate) fn write(mut command: Command, folder: &Path) -> Result<(), Failure> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    std::fs::create_dir_all(&man)?;
    std::fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "windowsill", &completions)?;
    }
    clap_mangen::generate_to(command, &man)?;
    Ok(())
}
