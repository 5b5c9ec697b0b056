"""The contract of the command line: one document, one sentence, one exit code."""

import json
from pathlib import Path

import millrace
from millrace.cli import exit_code_of
from millrace.planner.errors import ClusterError, InfeasibleError, PlanError, ProtocolError


def test_the_version_is_the_packages(call):
    assert call("--version") == (0, f"millrace {millrace.__version__}\n", "")


def test_without_a_command_the_help_is_printed(call):
    code, out, _ = call()
    assert code == 0
    for command in ("models", "clusters", "plan", "show"):
        assert command in out


def test_models_are_listed_as_one_document(call):
    code, out, err = call("models", "gpt2-small", "gpt2", "--json")
    rows = json.loads(out)["rows"]
    assert (code, err) == (0, "")
    assert [row["name"] for row in rows] == ["gpt2-small", "gpt2-small"]
    assert rows[0]["parameters"] == 124_439_808


def test_training_flops_are_those_of_one_sample_at_the_length_asked_for(call):
    _, out, _ = call("models", "gpt2-small", "--seq-len", "512", "--json")
    # 6 FLOPs per weight of a matmul and token (the tied head included, positions and biases not),
    # and 12 per layer, key and hidden dim for full attention.
    weights = 12 * 12 * 768**2 + 50257 * 768
    attention = 12 * 12 * 512 * 768
    assert json.loads(out)["rows"][0]["training_flops"] == 512 * (6 * weights + attention)


def test_a_length_beyond_what_a_model_was_made_for_is_told_beside_the_answer(call):
    code, out, err = call("models", "llama3-8b", "--seq-len", "1000000", "--json")
    assert (code, json.loads(out)["rows"][0]["seq_len"]) == (0, 1_000_000)
    assert "`llama3-8b` was made for sequences of at most 8,192 tokens" in err
    code, _, err = call("models", "gpt2-small", "--seq-len", "1025")
    assert (code, "1025 tokens do not fit; use 1 to 1024" in err) == (2, True)


def test_devices_are_listed_and_a_cluster_is_described(call):
    _, out, _ = call("clusters", "--json")
    assert "a100-sxm-80gb" in [row["name"] for row in json.loads(out)["rows"]]
    _, out, _ = call("clusters", "a100-sxm-80gb:8x16", "--json")
    row = json.loads(out)["rows"][0]
    assert row["devices"] == 128
    assert [(level["name"], level["devices"]) for level in row["levels"]] == [
        ("node", 8),
        ("cluster", 128),
    ]
    _, out, _ = call("clusters", "gb200", "--json")
    assert json.loads(out)["rows"][0]["levels"][0]["devices"] == 72


def test_fabrics_are_listed_beside_the_devices(call):
    _, out, _ = call("clusters", "--json")
    (hdr,) = [row for row in json.loads(out)["fabrics"] if row["name"] == "hdr"]
    assert (hdr["bytes_per_s"], hdr["reached"], hdr["reduces"]) == (25e9, 0.94, "asked")
    _, out, _ = call("clusters")
    assert "roce-400" in out


def test_a_cluster_shows_which_switches_reduce_and_the_software_on_it(call, tmp_path):
    path = tmp_path / "sharp.toml"
    path.write_text(
        'device = "h100-sxm-80gb"\nnodes = 2\ninter_node = "8xndr+sharp"\n'
        '[software]\nname = "mine"\nhost_ns = 6_000\n'
    )
    _, out, _ = call("clusters", str(path), "--json")
    row = json.loads(out)["rows"][0]
    assert [level["reduces"] for level in row["levels"]] == [True, True]
    assert row["software"]["host_ns"] == 6_000
    _, out, _ = call("clusters", str(path))
    assert "reduced by its switches" in " ".join(out.split())
    assert "software mine: 6.00 µs of host a launch" in out


def test_a_cluster_of_several_kinds_is_shown_kind_by_kind_and_level_by_level(call, tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text(
        '[[groups]]\ndevice = "b200"\nnodes = 2\n[[groups]]\ndevice = "tpu-v5e"\n'
        "devices_per_node = 32\n[leaves]\nnodes = 1\noversubscription = 2\n"
    )
    _, out, _ = call("clusters", str(path), "--json")
    row = json.loads(out)["rows"][0]
    assert row["devices"] == 2 * 8 + 32
    assert [group["name"] for group in row["groups"]] == ["b200", "tpu-v5e"]
    _, out, _ = call("clusters", str(path))
    for shown in ("8 x 2", "32 x 1", "torus 4 x 8", "leaf", "oversubscribed"):
        assert shown in out


def test_every_error_has_its_exit_code():
    assert exit_code_of(InfeasibleError("does not fit")) == 1
    assert exit_code_of(PlanError("no such thing")) == 2
    assert exit_code_of(ClusterError("unknown")) == 2
    assert exit_code_of(ProtocolError("stuck")) == 3
    assert exit_code_of(OSError(28, "No space left on device")) == 3
    assert exit_code_of(ZeroDivisionError()) is None


PLANS = Path(__file__).parents[1] / "executor" / "plans"


def test_the_commands_of_a_rank_are_listed_without_a_gpu(call):
    plan = str(PLANS / "bf16-tp2.json")
    golden = (PLANS.parent / "cuda" / "golden" / "bf16-tp2.txt").read_text()
    assert call("show", plan, "--commands", "0") == (0, golden, "")
    code, out, err = call("show", plan, "--commands", "0", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"rank": 0, "commands": golden.splitlines()}
