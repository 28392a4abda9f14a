//! Where several windowsills share a record: what others did is taken up before a request goes on from it.

use crate::proxy::App;

/// Takes up what other windowsills recorded. What is remembered of the conversations that they wrote to is forgotten, as at a restart:
/// the record knows better. Where nobody shares the record, it does nothing.
pub async fn caught_up(app: &App) {
    app.store.caught_up().await;
    for id in app.store.changed_elsewhere() {
        app.lives.changed_elsewhere(&id);
    }
}
