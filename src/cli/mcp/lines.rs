//! The lines of MCP's stdio transport: one that is no JSON is answered as JSON-RPC 2.0 has it (section 5.1), which the library
//! leaves out. All others go on as they came.

use std::sync::Arc;

use serde::de::IgnoredAny;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, DuplexStream,
};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// The longest line that is read (bytes).
const LONGEST: u64 = 16 << 20;

/// Bytes that may wait between the library and the terminal.
const BETWEEN: usize = 64 << 10;

/// The answer to a line that is no JSON.
const NO_JSON: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"Parse error: the line is no JSON\"}}\n";

/// What the library reads and writes in place of these two. The task ends once all that it wrote is out.
#[expect(clippy::disallowed_methods, reason = "one task ends with the input, and the caller waits for the other")]
pub(super) fn checked(
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> (DuplexStream, DuplexStream, JoinHandle<()>) {
    let output = Arc::new(Mutex::new(output));
    let (to_library, from_client) = tokio::io::duplex(BETWEEN);
    let (to_client, from_library) = tokio::io::duplex(BETWEEN);
    let answers = Arc::clone(&output);
    tokio::spawn(read(BufReader::new(input), to_library, answers));
    let written = tokio::spawn(async move {
        let mut lines = BufReader::new(from_library);
        let mut line = Vec::new();
        while matches!(lines.read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
            if put(&output, &line).await.is_err() {
                return;
            }
            line.clear();
        }
    });
    (from_client, to_client, written)
}

/// Hands lines on until the client has no more.
async fn read<W: AsyncWrite + Unpin>(
    mut input: BufReader<impl AsyncRead + Unpin>,
    mut to_library: DuplexStream,
    answers: Arc<Mutex<W>>,
) {
    let mut line = Vec::new();
    // A line that is too long is not whole, and so no JSON.
    while matches!((&mut input).take(LONGEST).read_until(b'\n', &mut line).await, Ok(n) if n > 0) {
        let said = line.trim_ascii();
        let done = match serde_json::from_slice::<IgnoredAny>(said) {
            Ok(_) => {
                // The library waits for the line's end, which the last line may lack.
                let whole = line.ends_with(b"\n");
                to_library.write_all(&line).await.and(if whole { Ok(()) } else { to_library.write_all(b"\n").await })
            }
            Err(_) if said.is_empty() => Ok(()),
            Err(_) => put(&answers, NO_JSON).await,
        };
        if done.is_err() {
            return;
        }
        line.clear();
    }
}

/// Writes a line at once, whole.
async fn put<W: AsyncWrite + Unpin>(output: &Mutex<W>, line: &[u8]) -> std::io::Result<()> {
    let mut output = output.lock().await;
    output.write_all(line).await?;
    output.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_json_is_answered_and_the_others_go_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (client, server) = tokio::io::duplex(BETWEEN);
            let (out, mut seen) = tokio::io::duplex(BETWEEN);
            let (mut input, mut output, written) = checked(server, out);
            let mut client = client;
            client.write_all(b"no json\n\n{\"a\": 1}\n{\"half\":\n[2]").await.unwrap();
            drop(client);
            let mut handed = String::new();
            input.read_to_string(&mut handed).await.unwrap();
            assert_eq!(handed, "{\"a\": 1}\n[2]\n");
            output.write_all(b"{\"answer\":1}\n").await.unwrap();
            drop(output);
            written.await.unwrap();
            let mut all = String::new();
            seen.read_to_string(&mut all).await.unwrap();
            assert_eq!(all.matches("\"id\":null,\"error\":{\"code\":-32700").count(), 2, "{all}");
            assert!(all.ends_with("{\"answer\":1}\n") && all.lines().count() == 3, "{all}");
        });
    }
}
