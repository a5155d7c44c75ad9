"""The REST API of a coordinator for tests: canned answers on loopback, and a record of requests."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any] | list[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int = 200
    body: Body = None
    text: str = ""
    """Sent instead of a JSON body, as an event stream."""


@dataclass(slots=True)
class FakeApi:
    """Answers each `METHOD /path` from a list, the last one again and again."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def answer(self, route: str, *answers: Answer) -> None:
        self.answers[route] = list(answers)

    def handle(self, request: Request) -> Answer:
        self.requests.append(request)
        route = f"{request.method} {request.path.partition('?')[0].removeprefix('/api/v1')}"
        if request.headers.get("accept") == "text/event-stream":
            route = f"STREAM {route.partition(' ')[2]}"
        waiting = self.answers.get(route)
        if not waiting:
            return problem(404, "JOB_NOT_FOUND", f"nothing at {route}")
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]


def problem(status: int, reason: str, detail: str, **extra: Any) -> Answer:
    return Answer(
        status=status,
        body={
            "type": f"https://planaria.dev/errors/{reason}",
            "title": "A title",
            "status": status,
            "detail": detail,
            "reason": reason,
            "metadata": {},
            **extra,
        },
    )


def stream(*events: dict[str, Any]) -> Answer:
    """An event stream that ends after these events."""
    text = ": keep-alive\n\n"
    for event in events:
        text += f"id: {event['sequence']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n"
    return Answer(text=text)


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that go before they have their answer, as watchers do."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving() -> Iterator[FakeApi]:
    fake = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            answer = fake.handle(
                Request(
                    method=self.command,
                    path=self.path,
                    headers={name.lower(): value for name, value in self.headers.items()},
                    body=json.loads(self.rfile.read(length)) if length else None,
                )
            )
            raw = answer.text or ("" if answer.status == 204 else json.dumps(answer.body))
            self.send_response(answer.status)
            self.send_header(
                "Content-Type", "text/event-stream" if answer.text else "application/json"
            )
            self.send_header("Content-Length", str(len(raw.encode())))
            self.end_headers()
            self.wfile.write(raw.encode())

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

        def log_message(self, *_arguments: object) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
