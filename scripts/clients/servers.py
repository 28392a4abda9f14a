"""Two servers in threads of this process: the scripted model, and the tap between a client and what it speaks to."""

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import replies
import script

MODEL = "scripted"
# The tap numbers what a client asks; windowsill hands the header on, so that both sides of a request can be told to belong together.
NUMBER = "x-clients-request"
SECRET = {"authorization", "x-api-key", "api-key", "cookie"}


def tokens(value):
    """What the scripted model counts: characters / 4."""
    return max(1, len(json.dumps(value, ensure_ascii=False)) // 4)


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        """A client that hangs up is no trouble of ours."""


class Server:
    """A server on a port of the system's choice, with a log of what it was asked."""

    def __init__(self, handler):
        self.log = []
        self.http = Quiet(("127.0.0.1", 0), type(handler.__name__, (handler,), {"server_": self}))
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.http.shutdown()
        self.http.server_close()


class Model(Server):
    """The scripted model behind an imitation of llama-server, with every API that clients speak."""

    def __init__(self, said, window):
        self.said, self.window, self.count, self.lock = said, window, 0, threading.Lock()
        super().__init__(ModelHandler)


class Tap(Server):
    """Hands everything on and keeps both sides."""

    def __init__(self, upstream):
        self.upstream, self.count, self.lock = upstream, 0, threading.Lock()
        super().__init__(TapHandler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def read(self):
        if "chunked" not in (self.headers.get("Transfer-Encoding") or "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        whole = b""
        while size := int(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
            whole += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return whole

    def begin(self, kind, status=200, chunked=True, more=()):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in more:
            self.send_header(name, value)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

    def chunk(self, text):
        data = text.encode() if isinstance(text, str) else text
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end(self):
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def json(self, value, status=200):
        data = json.dumps(value).encode()
        self.begin("application/json; charset=utf-8", status, chunked=False, more=[("Content-Length", str(len(data)))])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_any(self):
        try:
            self.answer(self.read())
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = handle_any


KINDS = {"/chat/completions": "chat", "/responses": "responses", "/messages": "anthropic", "/api/chat": "ollama"}


class ModelHandler(Handler):
    def answer(self, raw):
        model, path = self.server_, self.path.split("?")[0]
        if self.command in ("GET", "HEAD"):
            return self.tell(path)
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        if path.endswith("/api/show"):
            return self.json({"details": {"family": "llama"}, "model_info": {"llama.context_length": 131072}, "capabilities": ["completion", "tools"]})
        if path.endswith("/input_tokens"):
            return self.json({"object": "response.input_tokens", "input_tokens": self.size(body)})
        if path.endswith("/count_tokens"):
            return self.json({"input_tokens": self.size(body)})
        kind = next((kind for end, kind in KINDS.items() if path.endswith(end)), None)
        if not kind:
            return self.json({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, 404)
        self.generate(kind, body)

    @staticmethod
    def size(body):
        said = body.get("messages") or body.get("input") or []
        return tokens([said, body.get("tools"), body.get("system"), body.get("instructions")])

    def generate(self, kind, body):
        model, size = self.server_, self.size(body)
        messages = body.get("messages") or body.get("input") or []
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        own = script.own_kind(body, messages)
        entry = {"number": self.headers.get(NUMBER), "at": time.time(), "body": body, "tokens": size, "own": own}
        with model.lock:
            model.count += 1
            number = model.count
            model.log.append(entry)
        if size > model.window:
            entry["refused"] = True
            words = f"request ({size} tokens) exceeds the available context size ({model.window} tokens), try increasing it"
            error = {"code": 400, "message": words, "type": "exceed_context_size_error", "n_prompt_tokens": size, "n_ctx": model.window}
            return self.json({"error": error}, 400)
        if own:
            answer = script.Answer(script.SUMMARY if own == "summary" else "")
        else:
            answer = model.said.answer(messages, script.tools_of(body.get("tools")))
        getattr(replies, kind)(self, body, answer, size, tokens([answer.text, answer.calls]), number)

    def tell(self, path):
        window = self.server_.window
        if path.endswith("/models"):
            known = {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072, "n_ctx": window}}
            return self.json({"object": "list", "data": [known]})
        if "/models/" in path:
            return self.json({"id": path.split("/models/")[1], "object": "model", "created": 1700000000, "owned_by": "llamacpp"})
        if path.endswith("/props"):
            return self.json({"default_generation_settings": {"n_ctx": window, "params": {}}, "total_slots": 1, "model_path": "scripted.gguf",
                              "chat_template": "", "modalities": {"vision": False, "audio": False}, "build_info": "scripted"})
        if path.endswith("/health"):
            return self.json({"status": "ok"})
        if path.endswith("/api/tags"):
            return self.json({"models": [{"name": MODEL, "model": MODEL, "size": 1, "digest": "0" * 64, "details": {"family": "llama"}}]})
        if path.endswith("/api/version"):
            return self.json({"version": "0.24.0"})
        self.json({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, 404)


class TapHandler(Handler):
    def answer(self, raw):
        tap = self.server_
        with tap.lock:
            tap.count += 1
            number = str(tap.count)
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        entry = {"number": number, "at": time.time(), "method": self.command, "path": self.path.split("?")[0], "body": body, "status": None, "headers": {}}
        tap.log.append(entry)
        link = http.client.HTTPConnection("127.0.0.1", tap.upstream, timeout=300)
        try:
            self.hand_on(link, raw, number, entry)
        except (http.client.HTTPException, OSError) as error:
            entry["error"] = repr(error)
            self.close_connection = True
        finally:
            link.close()

    def hand_on(self, link, raw, number, entry):
        left = ("transfer-encoding", "content-length", "host", "connection")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in left}
        headers |= {"Host": f"127.0.0.1:{self.server_.port}", NUMBER: number}
        if raw or self.command in ("POST", "PUT"):
            headers["Content-Length"] = str(len(raw))
        link.request(self.command, self.path, body=raw or None, headers=headers)
        reply = link.getresponse()
        entry["status"], entry["headers"] = reply.status, {k.lower(): v for k, v in reply.getheaders()}
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "keep-alive", "server", "date"):
                self.send_header(name, value)
        chunked = "chunked" in (reply.getheader("Transfer-Encoding") or "").lower()
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        elif reply.getheader("Content-Length") is None and self.command != "HEAD":
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        kept = b""
        while data := reply.read1(65536):
            kept = (kept + data)[:4000]
            self.chunk(data) if chunked else self.wfile.write(data)
        entry["reply"] = kept.decode("utf8", "replace") if reply.status >= 400 else ""
        if chunked:
            self.end()
