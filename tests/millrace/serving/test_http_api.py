"""The HTTP API: questions that are answered, and those that are refused with a sentence."""

import signal
import socket
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from millrace.planner.plan import Plan, check_plan
from tests.executor.sources import ROOT
from tests.millrace.serving.conftest import SMALL, ServedPage


def test_a_plan_is_searched_shown_and_downloaded(served: ServedPage, small_plan: str) -> None:
    status, shown = served.ask(f"api/plans/{small_plan}")
    assert status == 200
    assert shown["summary"]["pp"] == 2
    assert [stage["stage"] for stage in shown["stages"]] == [0, 1]
    assert {"op", "kind", "inputs", "outputs"} == set(shown["block"]["ops"][0])
    status, document = served.ask(f"api/plans/{small_plan}/document")
    plan = check_plan(msgspec.convert(document, Plan))
    assert plan.digest() == shown["summary"]["digest"]


def test_a_question_that_was_answered_is_answered_at_once(
    served: ServedPage, small_plan: str
) -> None:
    status, job = served.ask("api/plan", SMALL)
    assert (status, job["state"], job["plan"]) == (202, "done", small_plan)


def test_what_ifs_change_the_figures_in_the_way_they_should(
    served: ServedPage, small_plan: str
) -> None:
    def figures(**changes: Any) -> dict[str, Any]:
        status, answer = served.ask("api/simulate", {"plan": small_plan, "what_ifs": changes})
        assert status == 200, answer
        return dict(answer)

    same = figures()
    assert same["base"] == same["changed"]
    step_s = same["base"]["step_time_s"]
    assert figures(straggler_factor=2.0)["changed"]["step_time_s"] > 1.2 * step_s
    assert figures(jitter=0.3)["changed"]["step_time_s"] != step_s
    assert figures(links=0.1)["changed"]["step_time_s"] > step_s
    assert figures(compute=4.0)["changed"]["step_time_s"] < step_s
    more = figures(microbatches=64)["changed"]
    assert more["bubble_fraction"] < same["base"]["bubble_fraction"]
    assert more["global_batch"] > same["base"]["global_batch"]


def test_a_step_has_spans_memory_and_a_breakdown(served: ServedPage, small_plan: str) -> None:
    status, step = served.ask("api/step", {"plan": small_plan})
    assert status == 200
    bars = step["schedule"]["bars"]
    assert len({len(column) for column in bars.values()}) == 1
    assert max(bars["end_ns"]) <= step["step_time_ns"]
    for stage, pieces in zip(step["memory"], step["breakdown"]["stages"], strict=True):
        columns = stage["bytes_by_kind"].values()
        assert {len(column) for column in columns} == {len(stage["times_ns"])}
        assert sum(pieces["pieces"].values()) == pytest.approx(step["step_time_ns"], rel=0.01)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"model": "gpt2-smal"}, "model", "gpt2-small"),
        ({"model": "os:system"}, "model", "there is no model"),
        ({"model": "../../etc/passwd"}, "model", "there is no model"),
        ({"model": "model.pt2"}, "model", "there is no model"),
        ({"cluster": "/tmp/mine.toml"}, "cluster", "no cluster that a page may ask for"),
        ({"cluster": "local:2"}, "cluster", "a page measures nothing"),
        ({"cluster": "h100:8x9999"}, "cluster", "may ask about 4,096"),
        ({"cluster": "h1000:8x1"}, "cluster", "h1000"),
        ({"network": "ndrr"}, "network", "ndr"),
        ({"precision": "bf17"}, "precision", "bf17"),
        ({"framework": "megatron"}, "framework", "megatron-core"),
        ({"reserve": "much"}, "reserve", "much"),
        ({"pins": {"tp": 3}}, "pins.tp", "3"),
        ({"pins": {"schedule": "2f2b"}}, "pins.schedule", "1f1b"),
    ],
)
def test_a_search_that_cannot_be_is_refused_at_its_field(
    served: ServedPage, changes: dict[str, Any], field: str, words: str
) -> None:
    job = served.job(SMALL | {"pins": {}} | changes)
    assert job["state"] == "failed"
    assert (job["field"], words in job["error"]) == (field, True), job
    assert "Traceback" not in job["error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "no JSON"),
        (b"[" * 5000, 400, "nested too deep"),
        (b"\xff\xfe", 400, "no JSON"),
        (b"", 422, "the body"),
        (b"[]", 422, "the body"),
        (b"{}", 422, "model"),
        (b'{"model": "mlp", "cluster": "a100:1x1", "global_batch": "8"}', 422, "global_batch"),
        (b'{"model": "mlp", "cluster": "a100:1x1", "global_batch": 1e99}', 422, "global_batch"),
        (b'{"model": 7, "cluster": "a100:1x1", "global_batch": 8}', 422, "model"),
        (b'{"model": "mlp", "cluster": "a100:1x1", "global_batch": 8, "x": 1}', 422, "x"),
        (b" " * (2**20 + 1), 413, "1,048,576"),
    ],
)
def test_a_body_that_is_no_question_is_refused(
    served: ServedPage, body: bytes, status: int, words: str
) -> None:
    answered, document = served.ask("api/plan", body)
    assert (answered, words in document["error"]) == (status, True), document


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("api/catalogue", "GET", {"Host": "evil.example"}, 421),
        ("api/catalogue", "GET", {"Origin": "https://evil.example"}, 403),
        ("api/catalogue", "GET", {"Origin": "null"}, 403),
        ("api/catalogue", "GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("api/plan", "POST", {"Content-Type": "text/plain"}, 415),
        ("api/plan", "PUT", {}, 405),
        ("api/plan", "GET", {}, 405),
        ("api/plans/../../etc/passwd", "GET", {}, 404),
        ("page/..%2f..%2fhttp_app.py", "GET", {}, 404),
        ("api/plans/0000000000000000", "GET", {}, 404),
        ("api/plans/no-plan/report", "GET", {}, 422),
        ("api/jobs/none", "DELETE", {}, 404),
        ("docs", "GET", {}, 404),
        ("?" + "q" * 3000, "GET", {}, 414),
    ],
)
def test_a_request_of_another_kind_is_refused(
    served: ServedPage, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    body = b"{}" if method == "POST" else None
    answered, document = served.ask(path, body, method, **headers)
    assert answered == status, document
    assert document["error"]


def test_what_is_no_http_gets_a_sentence(served: ServedPage) -> None:
    port = int(served.address.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert b"no HTTP request" in connection.recv(4096)


def test_every_answer_shuts_out_scripts_and_frames_of_others(served: ServedPage) -> None:
    from urllib.request import urlopen

    for path in ("", "page/page.css", "api/catalogue"):
        with urlopen(served.address + path) as answer:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in answer.headers


def test_a_search_that_waits_or_runs_is_cancelled(served: ServedPage) -> None:
    large = {"model": "llama3-70b", "cluster": "h100:8x32", "global_batch": 512}
    jobs = [served.ask("api/plan", large | {"seq_len": length})[1] for length in (4096, 8192)]
    for job in reversed(jobs):
        status, cancelled = served.ask(f"api/jobs/{job['job']}", method="DELETE")
        assert (status, cancelled["state"]) == (200, "cancelled")
    assert served.job(SMALL | {"global_batch": 16})["state"] == "done"  # by a new process


def test_ctrl_c_ends_the_server_with_130() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from millrace.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "http://127.0.0.1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "millrace: interrupted\n")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "millrace", "serve", "--port", str(port)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"--port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_library_is_named_with_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from millrace.cli import run; sys.exit(run(['serve', '--port', '0']))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'millrace[serve]'" in done.stderr
    assert "Traceback" not in done.stderr
