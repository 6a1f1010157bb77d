"""Asking a Prometheus what the dashboard asks; the answers of a real one are looked at in tests/container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlparse

import pytest

from millstream.loadgen.dashboard_answers import main, queries

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "millstream.json"


class Answers(BaseHTTPRequestHandler):
    """Knows `up`, and nothing else."""

    def do_GET(self) -> None:
        (expression,) = parse_qs(urlparse(self.path).query)["query"]
        series = (
            [{"metric": {}, "value": [0, "NaN"]}, {"metric": {}, "value": [0, "1.5"]}] if expression == "up" else []
        )
        body = json.dumps({"status": "success", "data": {"result": series}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def dashboard_of(directory: Path, *expressions: str) -> str:
    path = directory / "dashboard.json"
    targets = [{"expr": expression} for expression in expressions]
    path.write_text(json.dumps({"panels": [{"title": "One", "targets": targets}, {"title": "Text"}]}))
    return str(path)


def test_no_query_of_the_dashboard_keeps_a_variable() -> None:
    asked = list(queries(json.loads(DASHBOARD.read_text())))
    assert len(asked) > 20
    assert [query for query in asked if "$" in query.expression] == []


def test_it_tells_what_was_answered(prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prometheus", prometheus, "--dashboard", dashboard_of(tmp_path, "up")]) == 0
    assert "1.5" in capsys.readouterr().out


def test_a_query_without_an_answer_is_a_failure(
    prometheus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--prometheus", prometheus, "--dashboard", dashboard_of(tmp_path, "up", "missing")]) == 1
    assert "2 queries, 1 without an answer" in capsys.readouterr().out


def test_a_prometheus_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prometheus", "http://127.0.0.1:1", "--dashboard", dashboard_of(tmp_path, "up")]) == 2
    assert "http://127.0.0.1:1" in capsys.readouterr().err
