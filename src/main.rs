//! The command line of windowsill. stdout is for data, stderr for logs and errors. Exit codes: 0 fine, 1 it ran and the
//! answer is bad, 2 the command line or the config is wrong.

mod cli;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use tokio::net::TcpListener;
use tracing::info;
use windowsill::config::{self, Config, Flags};
use windowsill::plain;
use windowsill::proxy::{App, Error, Record};
use windowsill::server;

/// musl's own allocator maps memory and wakes other threads many times in each request, which then costs half as much again.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Help, with the commands in groups: twenty in one list say nothing of where to begin. A test holds it against the commands that there are.
const HELP: &str = "\
{about}

{usage-heading} {usage}

Start here:
  windowsill serve                 run the proxy before the Ollama or llama-server that runs here
  windowsill launch claude         start a client that is pointed at it, for this run alone
  windowsill context               what fills each window; or open http://127.0.0.1:8484/

Run:
  serve      Run the proxy
  doctor     What is installed and running, what is wrong, and how to fix it
  service    Run windowsill as a service of this user
  drain      Which servers get requests; none for one that is to go
  fit        The memory a model needs at each window, and the largest that fits
  profile    The settings that a model gets, and why
  key        A token for a person or a program that may come in
Clients:
  launch     Start a client that is pointed at the running proxy, for this run alone
  wrap       Point a client's own config at windowsill
  unwrap     Put a wrapped client's config back, byte for byte
  mcp        Serve recall, search and context to an agent as MCP tools
Look:
  top        Windows, requests, and fold, undo and pin by key
  context    Conversations; or one of them: gauge, regions, what was done
  status     How full a window is, in one line: for a status bar
  report     What was kept out of prompts, and what it cost
  recall     Search the originals, or print one exactly as it came
  plan       Dry run: what would be rewritten of a request
  count      Prompt tokens of a request, by region
  audit      Who read or changed what, where there are keys
Steer:
  compact    Fold a conversation now
  undo       The view before the last change
  restore    A message in full again
  clear      One line for a tool result
  evict      A preview for a tool result
  brief      Print the brief, or have it say something else
  pause      Rewrite nothing of a conversation
  unpause    Take the rewriting up again
  pin        A text that the model reads through every fold
  unpin      Take back what was pinned
  rules      What new conversations of a project begin with
  done       Say that a task is done
  resume     Let a conversation go on that a guardrail stopped
  build      A new conversation from turns of an old one
Keep:
  export     Write a conversation down, as Markdown or JSON Lines
  rename     Call a conversation what you call it
  star       Have retention leave a conversation alone
  delete     Delete one conversation
  record     Copy a record into a database that several windowsills share

Options:
{options}

`windowsill COMMAND --help` has the options of a command.
";

/// Keeps a long local chat or agent session alive in a small context window, and never loses what it takes out of the
/// prompt.
#[derive(Parser)]
#[command(name = "windowsill", version, about, max_term_width = 100, help_template = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    common: Common,
}

/// The same for every command: under a heading of their own, and only with `--help`.
#[derive(Args)]
#[command(next_help_heading = "Options of every command")]
struct Common {
    /// Read this config file and look nowhere else.
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of the record.
    #[arg(long, global = true, hide_short_help = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Inference server (may be given several times); the config's are left out then.
    #[arg(long, global = true, hide_short_help = true, value_name = "URL")]
    upstream: Vec<String>,
    /// The window: what is loaded, the largest that fits the memory, or a number of tokens.
    #[arg(long, global = true, hide_short_help = true, value_name = "N|fit|loaded")]
    num_ctx: Option<String>,
    /// Forward every request untouched and only say what would have been done; a record of its own is kept, and read.
    #[arg(long, global = true, hide_short_help = true)]
    shadow: bool,
    /// How to log: text or json.
    #[arg(long, global = true, hide_short_help = true, value_name = "FORMAT")]
    log: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Run the proxy.
    #[command(after_help = "Examples:
  windowsill serve                                       before the server that is found here
  windowsill serve --upstream http://192.168.1.5:11434   before another one
  windowsill serve --model qwen3-8b.gguf --num-ctx fit   without any server")]
    Serve {
        /// Address and port; port 0 takes a free one and prints it.
        #[arg(long, value_name = "ADDR")]
        listen: Option<String>,
        /// Serve this model itself, without any other server; the config's upstreams are left out then.
        #[arg(long, value_name = "FILE.gguf")]
        model: Option<PathBuf>,
        /// Render the model's prompts with this chat template (Jinja) instead of its file's own.
        #[arg(long, value_name = "FILE", requires = "model")]
        chat_template_file: Option<PathBuf>,
        /// Types of the model's KV cache: q8_0, or q8_0,q4_0 for keys and values. Default: f16.
        #[arg(long, value_name = "K[,V]", requires = "model")]
        kv_type: Option<String>,
        /// The model's layers on GPUs, in a build for those. Default: as many as fit.
        #[arg(long, value_name = "auto|all|N", requires = "model")]
        gpu_layers: Option<String>,
        /// What conversations are for, where a request does not say: debug, implement, chat, research, review, or auto.
        #[arg(long, value_name = "TASK")]
        task: Option<String>,
    },
    /// What is installed and running: servers, models and their windows, memory, problems and how to fix them.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// The memory a model needs at each window, and the largest window that fits.
    Fit(cli::fit::Fit),
    /// Dry run: what would be rewritten of a request, why, and the tokens before and after. Sends nothing.
    #[command(after_help = "Examples:
  windowsill plan request.json
  windowsill plan request.json --num-ctx 8192    at another window")]
    Plan(cli::plan::OfFile),
    /// Start a client that is pointed at the running proxy, for this run alone.
    #[command(after_help = "Examples:
  windowsill launch claude
  windowsill launch aider --model qwen3:8b -- --no-auto-commits")]
    Launch(cli::launch::Launch),
    /// Point a client's own config at windowsill; shows what changes, and keeps the original.
    Wrap(cli::wrap::Wrap),
    /// Put a wrapped client's config back, byte for byte.
    Unwrap(cli::wrap::Unwrap),
    /// Run windowsill as a service of this user: systemd's user manager, or a launch agent on macOS.
    Service {
        #[command(subcommand)]
        command: cli::service::Service,
    },
    /// Write man pages and completions into a folder.
    #[command(hide = true)]
    Pages {
        /// The folder.
        folder: PathBuf,
    },
    /// Answers questions about the memory of one model, for `fit --method dry-run`.
    #[command(name = "dry-run-worker", hide = true)]
    DryRunWorker {
        /// The model's file.
        file: PathBuf,
    },
    /// Counts prompts with the vocabulary and the chat template of one model.
    #[command(name = "count-worker", hide = true)]
    CountWorker {
        /// The model's file.
        file: PathBuf,
    },
    /// Generates with one model, for `serve --model`.
    #[command(name = "engine-worker", hide = true)]
    EngineWorker(cli::engine::Worker),
    /// Tells of the GPUs that llama.cpp computes on, for whoever must not ask their drivers itself.
    #[command(name = "devices-worker", hide = true)]
    DevicesWorker,
    /// Prompt tokens of a request, by region.
    Count(cli::plan::OfFile),
    /// Windows and what happens, live in a terminal; fold, undo and pin by key.
    Top,
    /// Conversations; or one conversation's gauge, regions, thresholds and what was done to it.
    #[command(after_help = "Examples:
  windowsill context              all conversations
  windowsill context c7dc         what fills one's window, and what was done to it
  windowsill context --follow     what happens, as it happens")]
    Context(cli::context::Context),
    /// Summarize a conversation now, in the running proxy.
    #[command(alias = "fold")]
    Compact {
        /// A conversation's id, or the beginning of one.
        id: String,
        /// What the summary should keep above all.
        #[arg(long, value_name = "TEXT")]
        focus: Option<String>,
        /// Have the focus wait for the next fold, which comes by itself: nothing is evaluated again for it.
        #[arg(long, requires = "focus")]
        next_break: bool,
        /// Write the brief and say what folding costs; change nothing. A fold that follows takes that brief.
        #[arg(long)]
        dry_run: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Say that a task is done: its completion record is kept, and the conversation is folded.
    Done(cli::guard::Done),
    /// Let a conversation go on that a ceiling or the watchdog stopped.
    Resume(cli::guard::Resume),
    /// Have the model read a text through every fold, word for word; without one, lists what is pinned.
    #[command(after_help = "Examples:
  windowsill pin c7dc \"Never touch the migrations.\"
  windowsill pin c7dc --message 4 --next-break
  windowsill pin c7dc                              what is pinned")]
    Pin(cli::pin::Pin),
    /// Take back what was pinned.
    Unpin(cli::pin::Unpin),
    /// Have the model see a conversation as before its last rewrite.
    Undo(cli::steer::Undo),
    /// Have the model see a message in full again.
    Restore(cli::steer::OfMessage),
    /// Take a tool result out of the prompt: one line stands for it.
    Clear(cli::steer::OfMessage),
    /// Have a preview stand for a tool result.
    #[command(visible_alias = "preview")]
    Evict(cli::steer::OfMessage),
    /// Print the brief of a conversation, or have it say something else.
    Brief(cli::steer::Brief),
    /// Rewrite nothing of a conversation; what no longer fits is refused.
    Pause(cli::steer::Paused),
    /// Take the rewriting of a conversation up again.
    Unpause(cli::steer::Paused),
    /// Write a conversation down, as Markdown or as JSON Lines.
    Export(cli::steer::Export),
    /// Call a conversation what you call it.
    Rename(cli::steer::Titled),
    /// Have retention leave a conversation alone.
    Star(cli::steer::Starred),
    /// Delete one conversation. What other conversations share with it stays.
    Delete(cli::steer::Deleted),
    /// How full a window is and how soon it is folded, in one line: for a status bar.
    Status(cli::steer::Status),
    /// List, change and remove the rules that new conversations of a project begin with.
    Rules(cli::rules::Rules),
    /// Serve recall, search, context and window to an agent as MCP tools, over standard input and output.
    Mcp(cli::mcp::Mcp),
    /// Search the originals, or print one exactly as it came.
    #[command(after_help = "Examples:
  windowsill recall \"port 8080\"             search everything that was said
  windowsill recall r3f9a0c --range 10-40    lines of one original
  windowsill recall c7dc02:12                a message
  windowsill recall c7dc02 > chat.md         a conversation as Markdown")]
    Recall(cli::recall::Recall),
    /// A new conversation from chosen turns of an old one, as messages for a client; without turns, lists them.
    #[command(after_help = "Examples:
  windowsill build c7dc                           its turns, steps and briefs
  windowsill build c7dc --turns 1,7-9 > new.json  a new conversation of four turns")]
    Build(cli::build::Build),
    /// What was kept out of prompts, how much of it was read back, and what it cost; sums alone.
    Report(cli::report::Report),
    /// Have a server get no more requests, while those that are open end; or list the servers.
    Drain(cli::drain::Drain),
    /// Who read or changed what, the last ones. It is written down where config.toml has keys.
    Audit(cli::key::Audit),
    /// Copy a record into a database that several windowsills share.
    Record {
        #[command(subcommand)]
        command: cli::record::Record,
    },
    /// Make a token for a person or a program that may come in.
    Key {
        #[command(subcommand)]
        command: cli::key::Key,
    },
    /// The profiles; which one a model gets, and why.
    Profile {
        #[command(subcommand)]
        command: cli::profile::Profile,
    },
}

/// What a command came to.
enum Failure {
    /// Exit code 1.
    Bad(String),
    /// Exit code 2.
    Usage(String),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let hint = match &e {
            Error::Client { hint, .. } | Error::Upstream { hint, .. } => hint.clone(),
            Error::Unread(_) => None,
            // What stands in a reply of a proxy that goes on is not true of a command, which ends.
            Error::Record { source } => {
                Some(source.hint().trim_end_matches("; windowsill goes on by itself then").to_owned())
            }
            Error::Internal { source, .. } => Some(source.to_string()),
        };
        // Both may repeat the words of a server.
        let why = match &e {
            Error::Record { source } => format!("the record cannot be used: {source}"),
            e => e.to_string(),
        };
        let (why, hint) = (why, hint.map(|hint| format!("\n  hint: {}", plain::line(&hint))));
        Failure::Bad(format!("{}{}", plain::line(&why), hint.unwrap_or_default()))
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure::Bad(e.to_string())
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // clap would list the commands, those among them that are only for windowsill itself.
        Err(e) if e.kind() == clap::error::ErrorKind::MissingSubcommand => {
            let hint = "`windowsill serve` runs the proxy; `windowsill --help` lists all commands";
            let _ = writeln!(io::stderr(), "error: no command is given\n  hint: {hint}");
            return ExitCode::from(2);
        }
        Err(e) => e.exit(),
    };
    let (code, message) = match run(cli) {
        Ok(code) => return code,
        Err(Failure::Bad(message)) => (ExitCode::from(1), message),
        Err(Failure::Usage(message)) => (ExitCode::from(2), message),
    };
    let message = message.strip_prefix("error: ").unwrap_or(&message).trim_end();
    let _ = writeln!(io::stderr(), "error: {}", plain::page(message));
    code
}

/// Says something beside the data.
fn note(text: &str) {
    let _ = writeln!(io::stderr(), "note: {}", plain::page(text));
}

/// What needs no config: the workers that windowsill starts itself, and what packages are made with.
fn without_config(command: &Command) -> Option<Result<ExitCode, Failure>> {
    Some(match command {
        Command::DryRunWorker { file } => Ok(cli::fit::dry_run_worker(file)),
        Command::CountWorker { file } => Ok(cli::engine::count_worker(file)),
        Command::EngineWorker(of) => Ok(cli::engine::work_on(of)),
        Command::DevicesWorker => Ok(cli::engine::tell_devices()),
        Command::Pages { folder } => {
            cli::pages::write(<Cli as clap::CommandFactory>::command(), folder).map(|()| ExitCode::SUCCESS)
        }
        // Undoing needs no config of ours.
        Command::Unwrap(of) => cli::wrap::unwrap(of),
        // One that cannot be read yet may be what the key is for.
        Command::Key { command } => cli::key::key(command),
        _ => return None,
    })
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    if let Some(done) = without_config(&cli.command) {
        return done;
    }
    let mut flags = Flags {
        config: cli.common.config,
        upstream: cli.common.upstream,
        num_ctx: cli.common.num_ctx,
        data_dir: cli.common.data_dir,
        log: cli.common.log,
        shadow: cli.common.shadow,
        ..Flags::default()
    };
    if let Command::Serve { listen, model, chat_template_file, kv_type, gpu_layers, task } = &cli.command {
        flags.serves = true;
        flags.listen.clone_from(listen);
        flags.model.clone_from(model);
        flags.chat_template_file.clone_from(chat_template_file);
        flags.kv_type.clone_from(kv_type);
        flags.gpu_layers.clone_from(gpu_layers);
        flags.task.clone_from(task);
    }
    let loaded = config::load(&flags);
    if let Command::Doctor { json } = cli.command {
        return cli::doctor::run(loaded, &flags, json);
    }
    let config = loaded.map_err(|p| Failure::Usage(config::report(&p, "nothing was started")))?;
    match cli.command {
        Command::Serve { .. } => serve(config),
        // Looked at above, whatever becomes of the config.
        Command::Doctor { json } => cli::doctor::run(Ok(config), &flags, json),
        Command::Fit(of) => cli::fit::run(&config, &of),
        Command::Plan(of) => cli::plan::show_plan(config, &of),
        Command::Count(of) => cli::plan::show_counts(config, &of),
        Command::Top => cli::top::run(&config),
        Command::Context(of) => cli::context::run(&config, &of),
        Command::Compact { id, focus, next_break, dry_run, json } => {
            compact(&config, &id, focus, &cli::pin::How { next_break, dry_run, json })
        }
        Command::Done(of) => cli::guard::done(&config, &of),
        Command::Resume(of) => cli::guard::resume(&config, &of),
        Command::Pin(of) => cli::pin::pin(&config, &of),
        Command::Unpin(of) => cli::pin::unpin(&config, &of),
        Command::Undo(of) => cli::steer::undo(&config, &of),
        Command::Restore(of) => cli::steer::message(&config, &of, "restore"),
        Command::Clear(of) => cli::steer::message(&config, &of, "clear"),
        Command::Evict(of) => cli::steer::message(&config, &of, "evict"),
        Command::Brief(of) => cli::steer::brief(&config, &of),
        Command::Pause(of) => cli::steer::rewriting(&config, &of, false),
        Command::Unpause(of) => cli::steer::rewriting(&config, &of, true),
        Command::Export(of) => cli::steer::export(&config, &of),
        Command::Rename(of) => cli::steer::rename(&config, &of),
        Command::Star(of) => cli::steer::star(&config, &of),
        Command::Delete(of) => cli::steer::delete(&config, &of),
        Command::Status(of) => cli::steer::status(&config, &of),
        Command::Rules(of) => cli::rules::run(&config, &of),
        Command::Launch(of) => cli::launch::run(&config, &of),
        Command::Wrap(of) => cli::wrap::wrap(&config, &of),
        Command::Service { command } => cli::service::run(&config, &flags, &command),
        Command::Mcp(of) => cli::mcp::run(&config, of),
        Command::Recall(of) => cli::recall::run(&config, &of),
        Command::Build(of) => cli::build::run(&config, &of),
        Command::Report(of) => cli::report::run(&config, &of),
        Command::Drain(of) => cli::drain::run(&config, &of),
        Command::Audit(of) => cli::key::audit(&config, &of),
        // Looked at above, before the config.
        Command::Key { .. } => Ok(ExitCode::SUCCESS),
        Command::Record { command } => cli::record::run(&config, &command),
        Command::Profile { command } => cli::profile::run(&config, command),
        // Looked at above, before the config.
        Command::Pages { .. }
        | Command::DryRunWorker { .. }
        | Command::CountWorker { .. }
        | Command::EngineWorker(_)
        | Command::DevicesWorker
        | Command::Unwrap(_) => Ok(ExitCode::SUCCESS),
    }
}

/// The record, where anything was recorded yet.
fn opened(config: &Config) -> Result<Record, Failure> {
    if config.data_dir.join("windowsill.sqlite").exists() {
        return Ok(Record::open(&config.data_dir)?);
    }
    Err(no_conversations(config))
}

/// That nothing was recorded yet.
fn no_conversations(config: &Config) -> Failure {
    let brief = std::time::Duration::from_millis(300);
    let runs = std::net::TcpStream::connect_timeout(&config.listen, brief).is_ok();
    let hint = match runs {
        true => format!(
            "something answers at {}: if that is a windowsill with another record, name its folder with --data-dir",
            config.listen
        ),
        false => format!("point a client at http://{}, or try `windowsill launch`", config.listen),
    };
    Failure::Bad(format!("no conversations yet in {}\n  hint: {hint}", config.data_dir.display()))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Prints a page for people. Titles, names and snippets in it are the words of others.
fn out(text: &str) -> Result<(), Failure> {
    out_exactly(&plain::page(text))
}

/// Prints a text of the record: byte for byte into a file or a pipe, harmless on a terminal.
fn out_original(text: &str) -> Result<(), Failure> {
    if io::stdout().is_terminal() { out(text) } else { out_exactly(text) }
}

fn out_exactly(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        // `windowsill recall … | head` is no error.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn out_json(value: &Value) -> Result<(), Failure> {
    out_exactly(&plain::json(&format!("{value:#}\n")))
}

fn serve(config: Config) -> Result<ExitCode, Failure> {
    cli::log::begin(&config.log)?;
    let listen = config.listen;
    let runtime = runtime()?;
    let under_way = runtime.block_on(async move {
        let listener = TcpListener::bind(listen).await.map_err(|e| {
            Failure::Bad(format!(
                "failed to listen on {listen}: {e}\n  hint: another address with --listen, or port 0 for a free one"
            ))
        })?;
        let address = listener.local_addr()?;
        let (app, found) = App::start(config).await?;
        found.iter().for_each(|line| info!("upstream {line}"));
        if app.upstreams().is_empty() {
            tracing::warn!(
                "no inference server was found yet: start Ollama or llama-server, which are looked for every few seconds, or name one with --upstream URL"
            );
        }
        app.load_embedded().await?;
        let app = Arc::new(app);
        out(&format!("listening on http://{address}\n"))?;
        io::stdout().flush()?;
        cli::service::ready::tell();
        let twice = async {
            stop().await;
            stop().await;
        };
        tokio::select! {
            ran = server::run(listener, Arc::clone(&app), stop()) => ran?,
            () = twice => tracing::warn!("told to stop twice: requests under way are dropped"),
        }
        app.close().await;
        // Every request has its own hold on the app.
        Ok::<_, Failure>(Arc::strong_count(&app) > 1)
    })?;
    if under_way {
        // A request that plans would panic in a runtime that is taken down meanwhile.
        std::mem::forget(runtime);
    }
    Ok(ExitCode::SUCCESS)
}

/// Done at the next SIGINT or SIGTERM.
async fn stop() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut terminate) = signal(SignalKind::terminate()) else {
            let _ = interrupt.await;
            return;
        };
        tokio::select! {
            _ = interrupt => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = interrupt.await;
}

fn compact(config: &Config, id: &str, focus: Option<String>, how: &cli::pin::How) -> Result<ExitCode, Failure> {
    let mut wanted = how.body();
    wanted["focus"] = focus.into();
    // A focus that waits has no brief to be priced with.
    wanted["write_brief"] = (how.dry_run && !how.next_break).into();
    let answer = cli::pin::ask(config, id, http::Method::POST, "compact", Some(&wanted))?;
    if how.json {
        out_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let page = cli::pin::said(&answer, how, cli::pin::FOLDED);
    let brief = answer["brief"].as_str().map_or_else(String::new, |brief| format!("\n{brief}\n"));
    out(&(page + &brief))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn help_names_each_command_once_and_in_a_group() {
        let command = Cli::command();
        let grouped = HELP.split("\nRun:\n").nth(1).unwrap();
        for sub in command.get_subcommands() {
            let name = sub.get_name();
            let lines = grouped
                .lines()
                .filter(|line| line.strip_prefix("  ").is_some_and(|l| l.split(' ').next() == Some(name)));
            assert_eq!(lines.count(), usize::from(!sub.is_hide_set() && name != "help"), "{name}");
        }
    }
}
