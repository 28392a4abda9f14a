"""A server that answers like llama-server, for what is installed here to talk to."""

import http.server, json, threading


class Model(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def say(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        answers = {
            "/v1/models": {"object": "list", "data": [{"id": "tiny", "object": "model"}]},
            "/props": {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1, "chat_template": ""},
            "/health": {"status": "ok"},
        }
        self.say(answers.get(self.path, {"error": {"message": "unknown"}}), 200 if self.path in answers else 404)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/v1/chat/completions":
            return self.say({"error": {"message": "unknown"}}, 404)
        message = {"role": "assistant", "content": "Hello."}
        self.say({"id": "1", "object": "chat.completion", "model": "tiny", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}})


def serve(port=0):
    """Serves in the background; returns its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
