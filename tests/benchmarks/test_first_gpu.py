import json
import subprocess
import sys

from benchmarks import first_gpu


def test_an_item_that_fails_becomes_a_row() -> None:
    row = first_gpu.run_apart("no such item", 60)
    assert (row["name"], row["ok"], row["error"]) == (
        "no such item",
        False,
        "KeyError: 'no such item'",
    )
    assert "Traceback" in str(row["details"])
    assert first_gpu.run_apart("versions", 0)["error"] == "no time was left"


def test_a_process_that_dies_is_told_by_its_signal_or_code() -> None:
    for code, ended in (("import os; os.abort()", "SIGABRT"), ("raise SystemExit(4)", "code 4")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        row = first_gpu.row_of(done)
        assert row["ok"] is False
        assert ended in str(row["error"])


def test_figures_are_handed_over_whatever_else_is_printed() -> None:
    told = first_gpu.MARK + json.dumps({"ok": True, "figures": {"a": 1}})
    done = subprocess.CompletedProcess([], 0, f"noise\n{told}\nmore noise\n", "")
    assert first_gpu.row_of(done) == {"ok": True, "figures": {"a": 1}}


def test_every_item_says_what_it_checks_and_only_libraries_we_can_do_without_are_peers() -> None:
    items = first_gpu.items()
    assert all(item.__doc__ for item in items.values())
    peers = {name for name in items if first_gpu.is_peer({"name": name})}
    assert peers == {
        "triton_cubin",
        "external_events",
        "torch_product",
        "torch_layer_norm",
        "torch_attention",
        "cudnn_attention",
    }
