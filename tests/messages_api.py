"A server on this machine that speaks the Messages API, streaming and not, and fails on demand."
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "test-key"


class Api:
    """Serves scripted answers. `answers`: class name -> list of messages; which one is due follows from the request alone,
    by the number of assistant turns in it. `faults`: what happens to the next requests instead, in order.
    `delay`: seconds before each answer; `peak`: requests that were answered at the same time, at most.
    `together`: requests about other classes than the first wait until so many are here at the same time, or for 30 s."""

    def __init__(self, answers, faults=(), model="claude-opus-5-5", delay=0.0, together=1):
        self.answers, self.faults, self.model, self.requests, self.lock = answers, list(faults), model, [], threading.Lock()
        self.delay, self.peak, self.now = delay, 0, 0
        self.together, self.met, self.first = together, threading.Event(), ""
        handler = type("Handler", (_Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def about(self, request):
        "The class that a request is about"
        first = request["messages"][0]["content"]
        return re.search(r"Analyze `([\w.]+)`", first if isinstance(first, str) else first[0]["text"])[1]

    def due(self, request):
        name = self.about(request)
        n = sum(m["role"] == "assistant" for m in request["messages"])
        return self.answers[name][n] if n < len(self.answers[name]) else self.answers[name][-1]


def wait(seconds):
    "Also where a test has done away with time.sleep"
    if seconds:
        threading.Event().wait(seconds)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        api = self.api
        with api.lock:
            api.requests.append(request)
            fault = api.faults.pop(0) if api.faults else None
        if self.path.partition("?")[0] != "/v1/messages":
            return self.send(404, b"<html>no such page</html>", "text/html")
        if KEY not in (self.headers.get("x-api-key"), (self.headers.get("authorization") or "").removeprefix("Bearer ")):
            return self.fail(401, "authentication_error", "invalid x-api-key")
        if request["model"] != api.model:
            return self.fail(404, "not_found_error", f"model: {request['model']}")
        if isinstance(fault, tuple):
            return self.fail(*fault)
        with api.lock:
            api.now += 1
            api.peak = max(api.peak, api.now)
            api.first = api.first or api.about(request)
            if api.peak >= api.together:
                api.met.set()
        wait(api.delay)
        if api.about(request) != api.first:
            api.met.wait(30)
        with api.lock:
            api.now -= 1
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": api.model, "stop_sequence": None, **api.due(request)}
        if not request.get("stream"):
            return self.send(200, json.dumps(message).encode(), "application/json")
        self.stream(message, fault)

    def fail(self, status, kind, message, headers=()):
        body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
        self.send(status, body, "application/json", headers)

    def send(self, status, body, kind, headers=()):
        self.send_response(status)
        for name, value in (("content-type", kind), ("content-length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, message, fault):
        "Server-sent events; fault: `short` ends early, `broken` breaks a chunk, `error` sends an error event, `empty` sends nothing, `slow` takes its time"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        events = list(_events(message))
        if fault and fault != "slow":
            events = [] if fault == "empty" else events[:max(2, len(events) // 2)]
        if fault == "error":
            events.append({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
        for event in events:
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            except OSError:  # whoever asked has hung up
                return
            wait(0.2 if fault == "slow" else 0)
        self.close_connection = True
        if fault == "broken":
            self.wfile.write(b"ffff\r\nevent: cont")
        else:
            self.wfile.write(b"0\r\n\r\n")


def _events(message):
    usage = message["usage"]
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 0}}}
    for i, block in enumerate(message["content"]):
        if block["type"] == "text":
            start, deltas = {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in _parts(block["text"])]
        elif block["type"] == "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}, {"type": "signature_delta", "signature": block["signature"]}]
        else:
            start, deltas = block | {"input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in _parts(json.dumps(block["input"]))]
        yield {"type": "content_block_start", "index": i, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    yield {"type": "message_delta", "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None}, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def _parts(text, n=700):
    return [text[i:i + n] for i in range(0, len(text), n)] or [""]
