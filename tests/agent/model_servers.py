"""Stand-ins for model servers, on loopback, that speak the real wire formats: Ollama's and OpenAI's chat.

Each checks what it is sent as the real server does (types, the order of tool results, ids), and answers with its lines in
turn: a text, a list of calls `(name, arguments)`, a text with calls, or an error `(status, body)`.
"""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Call = tuple[str, Any]


@dataclass
class Say:
    """One reply of a model."""

    text: str = ""
    calls: Sequence[Call] = ()
    thinking: str = ""
    finish: str = "stop"


@dataclass
class Refuse:
    """An error instead of a reply."""

    status: int
    error: Any
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class ModelServer:
    """Context manager; `lines` are said in turn, the last one for ever."""

    lines: Sequence[Say | Refuse | str]
    models: Sequence[str] = ("qwen2.5:7b",)
    delay_s: float = 0.0
    break_stream: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0

    def __enter__(self) -> "ModelServer":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.json(200, outer.get(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body | {"_authorization": self.headers.get("authorization")})
                time.sleep(outer.delay_s)
                problem = outer.check(self.path, body)
                line = outer.lines[min(outer.asked, len(outer.lines) - 1)] if problem is None else problem
                outer.asked += problem is None
                if isinstance(line, Refuse):
                    self.json(line.status, line.error, line.headers)
                    return
                say = Say(line) if isinstance(line, str) else line
                if body.get("stream"):
                    self.stream(outer.pieces(body, say), outer.stream_type)
                else:
                    self.json(200, outer.whole(body, say))

            def json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                sent = {"content-type": "application/json", "content-length": str(len(data))} | (headers or {})
                for name, text in sent.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(data)

            def stream(self, pieces: list[bytes], kind: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for place, piece in enumerate(pieces):
                    if outer.break_stream and place:
                        self.close_connection = True
                        return
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class OllamaServer(ModelServer):
    """`/api/chat`, `/api/tags`, `/api/version`."""

    stream_type = "application/x-ndjson"

    def get(self, path: str) -> Any:
        if path == "/api/version":
            return {"version": "0.12.6"}
        details = {"parent_model": "", "format": "gguf", "family": "qwen2", "families": ["qwen2"]}
        details |= {"parameter_size": "7.6B", "quantization_level": "Q4_K_M"}
        return {
            "models": [
                {"name": name, "model": name, "modified_at": "2026-05-04T17:37:44.706015396-07:00", "size": 4683087332,
                 "digest": "845dbda0ea48ed749caafd9e6037047aa19acfcfd82e704d7ca97d631a0b697e", "details": details}
                for name in self.models
            ]
        }  # fmt: skip

    def check(self, path: str, body: dict[str, Any]) -> Refuse | None:
        assert path == "/api/chat"
        if body["model"] not in self.models:
            return Refuse(404, {"error": f"model '{body['model']}' not found"})
        for message in body["messages"]:
            if message["role"] not in ("system", "user", "assistant", "tool"):
                return Refuse(400, {"error": "invalid role"})
            for call in message.get("tool_calls") or []:
                if not isinstance(call["function"]["arguments"], dict):
                    return Refuse(400, {"error": "json: cannot unmarshal string into Go struct field"})
            if message["role"] == "tool" and not message.get("tool_name"):
                return Refuse(400, {"error": "tool result without tool_name"})
        for tool in body.get("tools") or []:
            assert tool["type"] == "function"
            assert tool["function"]["parameters"]["type"] == "object"
        return None

    def whole(self, body: dict[str, Any], say: Say) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": say.text}
        if say.thinking:
            message["thinking"] = say.thinking
        if say.calls:
            message["tool_calls"] = self._calls(say)
        return self._head(body) | {"message": message} | self._tail(say)

    def pieces(self, body: dict[str, Any], say: Say) -> list[bytes]:
        words = [word + " " for word in say.text.split(" ")[:-1]] + say.text.split(" ")[-1:] if say.text else []
        parts: list[dict[str, Any]] = [{"role": "assistant", "content": word} for word in words]
        if say.calls:
            parts.append({"role": "assistant", "content": "", "tool_calls": self._calls(say)})
        lines = [self._head(body) | {"message": part, "done": False} for part in parts]
        lines.append(self._head(body) | {"message": {"role": "assistant", "content": ""}} | self._tail(say))
        return [json.dumps(line).encode() + b"\n" for line in lines]

    def _calls(self, say: Say) -> list[dict[str, Any]]:
        """Newer servers send ids and places, older ones neither."""
        return [
            {"id": f"call_{place}", "function": {"index": place, "name": name, "arguments": args}}
            if self.asked % 2 else {"function": {"name": name, "arguments": args}}
            for place, (name, args) in enumerate(say.calls)
        ]  # fmt: skip

    def _head(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": body["model"], "created_at": "2026-11-30T08:00:00.123456789Z"}

    def _tail(self, say: Say) -> dict[str, Any]:
        return {
            "done_reason": say.finish, "done": True, "total_duration": 5191566416, "load_duration": 2154458,
            "prompt_eval_count": 26, "prompt_eval_duration": 383809000, "eval_count": 298, "eval_duration": 4799921000,
        }  # fmt: skip


class OpenAiServer(ModelServer):
    """`/v1/chat/completions`."""

    stream_type = "text/event-stream; charset=utf-8"

    def get(self, path: str) -> Any:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}

    def check(self, path: str, body: dict[str, Any]) -> Refuse | None:
        if path != "/v1/chat/completions":
            return Refuse(404, {"detail": "Not Found"})
        if body["model"] not in self.models:
            message = f"The model `{body['model']}` does not exist."
            return Refuse(404, {"error": {"message": message, "type": "NotFoundError", "code": 404}})
        open_ids: list[str] = []
        for message in body["messages"]:
            for call in message.get("tool_calls") or []:
                assert call["type"] == "function"
                assert isinstance(call["function"]["arguments"], str)
                open_ids.append(call["id"])
            if message["role"] == "tool":
                if message["tool_call_id"] not in open_ids:
                    said = "Invalid parameter: messages with role 'tool' must be a response to a preceding call"
                    return Refuse(400, {"error": {"message": said, "type": "invalid_request_error", "code": None}})
                open_ids.remove(message["tool_call_id"])
        return None

    def whole(self, body: dict[str, Any], say: Say) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
        if say.calls:
            message["tool_calls"] = [self._call(place, call) for place, call in enumerate(say.calls)]
        finish = "tool_calls" if say.calls else say.finish
        return self._head(body, "chat.completion") | {
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": {"prompt_tokens": 26, "completion_tokens": 298, "total_tokens": 324},
        }

    def pieces(self, body: dict[str, Any], say: Say) -> list[bytes]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": character} for character in say.text]
        for place, call in enumerate(say.calls):
            made = self._call(place, call)
            text = made["function"]["arguments"]
            opening = made | {"index": place, "function": {"name": call[0], "arguments": ""}}
            deltas.append({"tool_calls": [opening]})
            for start in range(0, len(text), 5):
                deltas.append({"tool_calls": [{"index": place, "function": {"arguments": text[start : start + 5]}}]})
        head = self._head(body, "chat.completion.chunk")
        chunks = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        finish = "tool_calls" if say.calls else say.finish
        chunks.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        usage = {"prompt_tokens": 26, "completion_tokens": 298, "total_tokens": 324}
        chunks.append(head | {"choices": [], "usage": usage})
        lines = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
        return [*lines, b"data: [DONE]\n\n"]

    def _call(self, place: int, call: Call) -> dict[str, Any]:
        name, args = call
        text = args if isinstance(args, str) else json.dumps(args)
        return {"id": f"call_{self.asked}_{place}", "type": "function", "function": {"name": name, "arguments": text}}

    def _head(self, body: dict[str, Any], kind: str) -> dict[str, Any]:
        return {"id": "chatcmpl-123", "object": kind, "created": 1796000000, "model": body["model"]}
