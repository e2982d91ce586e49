//! `colibri man`: manual pages, made from the definitions that the program parses with. Each page is what --help says.
use crate::args::{Arguments, ManArgs};
use crate::errors::Failure;
use crate::{report, target};
use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Runs it.
pub(crate) fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut program = Arguments::command();
    program.build();
    if let Some(folder) = &args.out {
        write_all(&program, folder)?;
    } else {
        let command = args.command.as_ref().map_or(Ok(&program), |name| named(&program, name))?;
        report::print(&page(command)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn named<'p>(program: &'p Command, name: &str) -> Result<&'p Command, Failure> {
    program.find_subcommand(name).ok_or_else(|| {
        let names: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
        Failure::Usage(format!("there is no command `{name}`; these exist: {}", names.join(", ")))
    })
}

/// One page for the program and one for each command, in a folder that is made if it is not there.
fn write_all(program: &Command, folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(Failure::io("making the directory of --out", folder))?;
    let commands = [program].into_iter().chain(program.get_subcommands());
    let mut pages = 0;
    for command in commands {
        let name = format!("{}.1", command.get_display_name().unwrap_or_else(|| command.get_name()));
        let file = target::place("--out", &folder.join(name), &[])?;
        fs::write(&file, page(command)?).map_err(Failure::io("writing", &file))?;
        pages += 1;
    }
    report::tell(&format!("wrote {} to {}", report::counted(pages, "page"), folder.display()));
    Ok(())
}

/// The page of a command that has been built.
fn page(command: &Command) -> Result<String, Failure> {
    let failed = |source: io::Error| Failure::Io { what: "making a manual page".into(), source };
    let mut bytes = Vec::new();
    sections(command, &mut bytes).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| failed(io::Error::other(error)))
}

fn sections(command: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone())
        .source(format!("colibri {}", env!("CARGO_PKG_VERSION")))
        .manual("Colibri manual");
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(page)?;
    }
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    let after = after.map(ToString::to_string).unwrap_or_default();
    let (notes, codes) = after.split_once("Exit codes:\n").unwrap_or((&after, ""));
    for (heading, lines) in [("NOTES", notes), ("EXIT STATUS", codes)] {
        if !lines.trim().is_empty() {
            // As it stands: it is a table.
            let mut section = Roff::default();
            section.control("SH", [heading]).control("nf", []);
            for line in lines.lines() {
                section.text([roman(line)]);
            }
            section.control("fi", []);
            section.to_writer(page)?;
        }
    }
    if command.get_version().is_some() {
        man.render_version_section(page)?;
    }
    Ok(())
}
