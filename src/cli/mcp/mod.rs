//! `windowsill mcp`: the agent's tools as a server of the Model Context Protocol over standard input and output. Only the
//! protocol's messages are written to stdout; it ends when stdin does.

mod lines;

use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{QuitReason, RequestContext, ServerInitializeError};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use tokio::io::DuplexStream;
use windowsill::config::{Config, LogConfig, LogFormat};
use windowsill::proxy::Agent;

use crate::{Failure, runtime};

/// What a model is told of the server as a whole.
const INSTRUCTIONS: &str = "windowsill keeps long conversations within a local model's context window. What it took out of the \
    prompt stands there as a marker with an id (windowsill recall r…): `recall` reads it back whole, `search` finds what was \
    said or taken out, `context` says how full the window is, `window` how large it is.";

#[derive(Args)]
pub(crate) struct Mcp {
    /// Open this conversation and no other.
    #[arg(long, value_name = "ID", conflicts_with = "all_conversations")]
    conversation: Option<String>,
    /// Let the agent list and search all conversations, not only those that it can name.
    #[arg(long)]
    all_conversations: bool,
}

struct Server {
    agent: Agent,
    tools: Vec<Tool>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let us = Implementation::new("windowsill", env!("CARGO_PKG_VERSION")).with_title("windowsill");
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(us)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let block = |text: String| vec![ContentBlock::text(text)];
        match self.agent.call(&request.name, &arguments).await {
            Some(Ok(text)) => Ok(CallToolResult::success(block(text)).into()),
            // Said in the tool's result, so that the model reads it.
            Some(Err(why)) => Ok(CallToolResult::error(block(why)).into()),
            None => {
                let known: Vec<Cow<'_, str>> = self.tools.iter().map(|tool| tool.name.clone()).collect();
                let message = format!("there is no tool `{}`; there are {}", request.name, known.join(", "));
                Err(ErrorData::invalid_params(message, None))
            }
        }
    }
}

/// Serves until stdin ends.
pub(crate) fn run(config: &Config, of: Mcp) -> Result<ExitCode, Failure> {
    // Quiet unless asked: clients show what a server writes to stderr.
    let filter = if config.log.filter == "info" { "warn,rmcp=error" } else { &config.log.filter };
    super::log::begin(&LogConfig { format: LogFormat::Text, filter: filter.to_owned(), telemetry: None })?;
    let agent = Agent::new(config, of.conversation, of.all_conversations);
    let read_only = || ToolAnnotations::new().read_only(true).open_world(false);
    let tools = agent
        .tools()
        .into_iter()
        .map(|tool| Tool::new(tool.name, tool.description, Arc::new(tool.schema)).annotate(read_only()))
        .collect();
    runtime()?.block_on(async {
        let (input, output, written) = lines::checked(tokio::io::stdin(), tokio::io::stdout());
        let ended = serve(Server { agent, tools }, input, output).await;
        // What was answered is written before the program ends.
        let _ = written.await;
        ended
    })
}

async fn serve(server: Server, input: DuplexStream, output: DuplexStream) -> Result<ExitCode, Failure> {
    let running = match server.serve((input, output)).await {
        Ok(running) => running,
        // Nobody wanted anything.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(ExitCode::SUCCESS),
        Err(e) => return Err(Failure::Bad(format!("the client does not speak MCP: {e}"))),
    };
    match running.waiting().await {
        Ok(QuitReason::Closed | QuitReason::Cancelled) => Ok(ExitCode::SUCCESS),
        Ok(other) => Err(Failure::Bad(format!("the MCP server stopped: {other:?}"))),
        Err(e) => Err(Failure::Bad(format!("the MCP server stopped: {e}"))),
    }
}
