//! Between the front door and the servers: [`App`] is what all of it shares. `turn` answers one request, `ahead` works between
//! requests, and `desk` is for what people and agents ask beside them. Never knows of sockets (that is `server`) nor of SQL.

mod ahead;
mod aside;
mod desk;
mod doors;
mod error;
mod find;
mod lookout;
mod pool;
mod routing;
mod servers;
mod start;
mod state;
mod traffic;
mod turn;

use crate::proxy::lookout::servers;
use std::sync::Arc;

use http::HeaderMap;

pub use ahead::background;
pub use desk::again::{Other, again};
pub use desk::ask::ask_original;
pub use desk::checkpoint::checkpoint;
pub use desk::compact::Compaction;
pub use desk::compact::compact;
pub use desk::curate::Chosen;
pub use desk::curate::{build, segments};
pub use desk::doctor::{Diagnosis, doctor};
pub use desk::fleet::{drain, upstreams};
pub use desk::house::{Exported, delete, export, rename, star};
pub use desk::machine::fit;
pub use desk::machine::windows;
pub use desk::models::{Told, load_model, models, unload_model};
pub use desk::pins::{Pinning, Unpinned};
pub use desk::pins::{pin, pins, unpin};
pub use desk::receipt::report;
pub use desk::record::{Asked, Record, Text, hit_json, lines, page};
pub use desk::report::plan_file;
pub use desk::report::{conversation, conversations, count, dry_run, know_counts, metrics_text, ready, record};
pub use desk::resume::resume;
pub use desk::rewrites::sentence_of;
pub use desk::rows::grouped;
pub use desk::rules::{add_rule, edit_rule, remove_rule, rules};
pub use desk::running::{
    ask as ask_running, ask_original_running, drain_running, rules_running, running_models, steer_running,
};
pub use desk::search::{Filter, filtered, search};
pub use desk::sides::{request_of, view};
pub use desk::sight::insight;
pub use desk::steer::{forget_wishes, list_tools, pause, recalled, steer};
pub use desk::timeline::{timeline, timeline_message};
pub use desk::trace::{TraceQuery, follow_running};
pub use desk::trace::{events, follow};
pub use doors::conversations::{conversation_item, conversation_items, conversation_of, create_conversation};
pub use doors::counts::{count_chat, count_messages};
pub use doors::dialect::refusal;
pub use doors::dialect::{anthropic_models, messages, ollama, ollama_asks};
pub use doors::embeds::{ollama_embeds, pass_below_api};
pub use doors::lasting::without_keep_alive;
pub use doors::responses::{compact_responses, count_responses, responses};
pub use doors::stored::{cancel_response, input_items, response_of};
pub use doors::{chat, pass};
pub use error::Error;
pub use start::{copy_record, open_record};
pub use state::fresh::caught_up;
pub use state::headers::{put_key_name, scope_asked, take_inner};
pub use state::steer::{Steer, When};
pub use turn::relay::{self, Body, json_reply};

pub use crate::engine::devices::tell as tell_devices;
pub use crate::engine::generate::{Setup as EngineSetup, work as generate};
pub use crate::guard::told::told;
pub use crate::plan::reason::AskedBy;
pub use crate::store::{Copied, Progress};

use self::servers::Servers;

/// The Model Context Protocol, for what carries its messages.
pub mod mcp {
    pub use super::desk::agent::Agent;
    pub use super::desk::protocol::{
        HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, MODERN, PARSE_ERROR, PROGRESS, Protocol,
        UNSUPPORTED_VERSION, declared, progress, progress_token, refused, unsupported, versions,
    };
}

use crate::config::Config;
use crate::keys::quota::Meter;
use crate::measure::Measure;
use crate::measure::afford::Machine;
use crate::store::Store;
use crate::upstream::Upstream;
use crate::usage::Metrics;
pub use crate::wire::dialect::Dialect;
pub use crate::wire::dialect::ollama::embed::Embeds;
use ahead::background::Tasks;
use aside::Aside;
use state::live::LiveConversations;
use state::whose::mark_of_key;
use traffic::Traffic;

/// Everything a request needs.
pub struct App {
    /// The settings.
    pub config: Config,
    store: Store,
    servers: Arc<Servers>,
    measure: Arc<Measure>,
    /// The counters behind `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Answers that many pages ask for at once.
    pub shared: desk::shared::Shared,
    /// What runs between requests.
    pub tasks: Tasks,
    /// Where large requests are worked on.
    aside: Aside,
    lives: Arc<LiveConversations>,
    /// What the stages of requests remember of earlier ones.
    turn: turn::memory::Memory,
    /// One change of what people want of a conversation at a time.
    standing_turn: tokio::sync::Mutex<()>,
    /// Who uses which model of which server.
    traffic: Arc<Traffic>,
    /// What is done behind a reply; the rooms that do it stand above the one that answers.
    after: fn(&Arc<App>, turn::account::Accounted),
    /// Replies that clients do not wait for.
    background: doors::background::Backgrounds,
}

impl App {
    /// Puts the parts together. Nothing is sent yet.
    pub fn new(config: Config, store: Store, upstreams: Vec<Arc<Upstream>>) -> App {
        let tasks = Tasks::default();
        let measure = Measure::on(Machine::of(&config, desk::machine::asking(&config, &tasks)));
        App {
            config,
            store,
            servers: Arc::new(Servers::of(upstreams)),
            measure: Arc::new(measure),
            metrics: Arc::default(),
            shared: desk::shared::Shared::default(),
            tasks,
            aside: Aside::default(),
            lives: Arc::default(),
            turn: turn::memory::Memory::default(),
            standing_turn: tokio::sync::Mutex::default(),
            traffic: Arc::default(),
            after: ahead::begin,
            background: doors::background::Backgrounds::default(),
        }
    }

    /// The same proxy on another record, that of a scope: the servers, what was measured of them and who uses them are shared, and
    /// nothing that a conversation left behind is.
    ///
    /// # Errors
    /// When the record cannot be opened.
    pub fn beside(&self, data_dir: std::path::PathBuf) -> Result<App, Error> {
        let scope = data_dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let store = self.store.open_beside(&data_dir, &scope)?;
        let mut config = self.config.clone();
        // A scope's memory stands beside the others', under the same name as its record.
        config.memory = config.memory.zip(data_dir.file_name()).map(|(dir, scope)| dir.with_file_name(scope));
        config.data_dir = data_dir;
        let app = App {
            config,
            store,
            servers: Arc::clone(&self.servers),
            measure: Arc::clone(&self.measure),
            metrics: Arc::clone(&self.metrics),
            shared: desk::shared::Shared::default(),
            tasks: Tasks::default(),
            aside: self.aside.clone(),
            lives: Arc::default(),
            turn: self.turn.beside(),
            standing_turn: tokio::sync::Mutex::default(),
            traffic: Arc::clone(&self.traffic),
            after: self.after,
            background: doors::background::Backgrounds::default(),
        };
        state::fresh::know_served(&app);
        ahead::retention::keep_house(&app);
        Ok(app)
    }

    /// The servers behind this proxy: those that were named, and of others those that are there.
    pub fn upstreams(&self) -> Vec<Arc<Upstream>> {
        servers(self).map(|(_, upstream)| Arc::clone(upstream)).collect()
    }

    /// The client's headers as an upstream may see them: without the key of this proxy, and without what is meant for it.
    fn outgoing(&self, from_client: &HeaderMap) -> HeaderMap {
        let mut out = from_client.clone();
        let of_a_page: Vec<_> = out.keys().filter(|name| state::headers::is_of_a_page(name)).cloned().collect();
        for name in of_a_page {
            out.remove(name);
        }
        // The front door has taken the token of a [[key]] out already.
        if self.config.api_key.is_some() {
            out.remove(http::header::AUTHORIZATION);
            out.remove("x-api-key");
        }
        for ours in state::headers::OURS {
            out.remove(ours);
        }
        out
    }

    /// The same, of a request of the conversation with this id: a router behind `upstream` is told of it.
    fn outgoing_of(&self, from_client: &HeaderMap, upstream: &Upstream, id: &str) -> HeaderMap {
        let mut out = self.outgoing(from_client);
        upstream.tell_session(&mut out, id);
        out
    }

    /// What the key with this name takes of its quotas, from now on. See [`put_key_name`].
    pub fn meter(&self, headers: &HeaderMap) -> Arc<Meter> {
        self.turn.meters.of(&mark_of_key(headers))
    }

    /// Stops background work and writes what is queued.
    pub async fn close(&self) {
        self.tasks.close().await;
        if let Some(spans) = self.metrics.spans() {
            spans.flush().await;
        }
        self.store.flush().await;
    }
}
