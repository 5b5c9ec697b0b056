"""Command lines that ask for what there is not, each with its exit code and words of its answer."""

import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from millrace.cli import run

LONG = "a" * 5000
FILES = {
    "empty.json": "",
    "list.json": "[1, 2]",
    "deep.json": "[" * 100_000,
    "nan.json": '{"schema_version": NaN}',
    "config.json": '{"model_type": "mamba-9"}',
    "cut.toml": 'device = "h100',
    "unknown.toml": 'device = "h1000"\nnodes = 2\n',
    "key.toml": 'device = "h100"\nnode = 2\n',
    "zero.toml": 'device = "h100"\nnodes = 0\n',
    "text.toml": 'device = "h100"\nnodes = "two"\n',
    "empty.toml": "",
    "empty.csv": "",
    "odd.csv": "a,b\n1,2\n",
}
BYTES = {
    "latin.json": b'{"n": "caf\xe9"}',
    "latin.toml": b'device = "caf\xe9"\n',
    "latin.csv": b"model,\xe9\n",
    "nul.json": b"\0\0\0{}",
}


def write_files(folder: Path) -> None:
    """Write what the lines of `WRONG` are about into a folder."""
    plan, trace = folder / "plan.json", folder / "trace.json"
    question = ["--cluster", "a100-sxm-80gb:2x1", "--global-batch", "8"]
    for words in (
        ["plan", "mlp", *question, "-o", str(plan)],
        ["simulate", str(plan), "--trace", str(trace)],
        ["simulate", str(plan), "--trace", str(folder / "look.chrome.json")],
    ):
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            assert run(words) == 0
    text = plan.read_text()
    versions = {
        "cut.json": text[: len(text) // 2],
        "future.json": text.replace('"schema_version": 1', '"schema_version": 9', 1),
        "typo.json": text.replace('"global_batch"', '"globalbatch"', 1),
    }
    for name, content in (FILES | versions).items():
        (folder / name).write_text(content)
    for name, raw in BYTES.items():
        (folder / name).write_bytes(raw)
    (folder / "folder").mkdir()
    (folder / "folder.json").mkdir()


def words_of(line: str) -> list[str]:
    """Arguments of a line, `{nul}` and `{long}` put in."""
    return [word.format(nul="\0", long=LONG) for word in shlex.split(line)]


PLAN = "plan mlp --cluster a100:2x1 --global-batch 8"
GPT = "plan gpt2-small --cluster h100:8x1 --global-batch 8"
SCALE = "scale mlp --cluster a100-sxm-80gb:2 --nodes 1 --global-batch 64"
IMPORT = "import-config --from megatron-core 'pretrain_gpt.py --num-layers"
RECOMMEND = "recommend llama3-8b --cluster h100:8 --tokens 1T"

# The line, its exit code, and words that the answer holds.
WRONG: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    # The command line itself: names, order, what is missing.
    ("plna gpt2", 2, ("plna", "mean 'plan'")),
    ("help", 2, ("'help'", "millrace --help")),
    ("--verison", 2, ("--verison", "did you mean --version")),
    ("--ranks", 2, ("--ranks goes behind a command", "`millrace demo --ranks`")),
    ("''", 2, ("an argument is empty",)),
    ("plan", 2, ("MODEL is missing", "millrace models")),
    ("plan gpt2 --global-batch 8", 2, ("--cluster is missing", "h100:8x16")),
    ("plan gpt2 --cluster local:2", 2, ("--global-batch is missing", "Samples")),
    ("plan gpt2 --cluster local:2 --global-batch", 2, ("--global-batch ",)),
    ("plan gpt2 --cluster local:2 --global-batch=", 2, ("--global-batch is empty",)),
    (f"{PLAN} --framework ''", 2, ("--framework is empty", "leave --framework out")),
    ("plan ''", 2, ("an argument of `plan` is empty",)),
    (f"{PLAN} --global-bach 8", 2, ("--global-bach", "did you mean --global-batch")),
    (f"{PLAN} extra", 2, ("`extra` is too many", "takes MODEL")),
    ("plan gpt2-small h100:8x1 8", 2, ("--cluster is missing",)),
    ("run plan.json --eager=3", 2, ("--eager does not take a value",)),
    ("compare plan.json", 2, ("TRACE is missing", "run --trace")),
    ("show plan.json plan.json plan.json", 2, ("`plan.json` is too many",)),
    (f"{PLAN} -tp 2", 2, ("no option -tp", "did you mean --tp?")),
    ("plan --model gpt2 --cluster local:2", 2, ("MODEL is given without an option",)),
    ("plan gpt2 --gpus 8 --global-batch 8", 2, ("--gpus", "did you mean --cluster?")),
    # Models.
    ("plan model.safetensors --cluster h100:8x1 --global-batch 8", 2, ("a model is a name of",)),
    ("models gpt2-smal", 2, ("`gpt2-smal`", "did you mean gpt2-small")),
    ("models gpt2 --seq-len 0", 2, ("--seq-len 0: expected a whole number of at least 1",)),
    ("models gpt2 --seq-len 4096", 2, ("1024 positions", "use 1 to 1024")),
    ("models llama3-8b --seq-len 99999999999999999", 2, ("use 1 to 16,777,216",)),
    ("models {long}.pt2", 2, ("aaa.pt2`: file name too long",)),
    ("models {long}.json", 2, ("aaa.json`: file name too long",)),
    ("models config.json", 2, ("`model_type` is 'mamba-9'; no reader knows it",)),
    ("models cut.json", 2, ("configuration `cut.json` is not JSON",)),
    ("models latin.json", 2, ("`latin.json`", "not UTF-8")),
    ("models deep.json", 2, ("nested too deep",)),
    ("models gpt2{nul}", 2, (r"`gpt2\x00`", "did you mean gpt2")),
    ("plan plan.json --cluster h100:8x1 --global-batch 8", 2, ("`plan.json`", "`model_type`")),
    ("plan math:sqrt --cluster h100:8x1 --global-batch 8", 2, ("`math:sqrt`", "returns a Graph")),
    ("plan no.such:f --cluster h100:8x1 --global-batch 8", 2, ("cannot be imported",)),
    # Clusters.
    ("clusters a100-sxm-80g:8x1", 2, ("did you mean a100-sxm-80gb",)),
    ("clusters local:none", 2, ("expected local:N", "such as local:4")),
    ("clusters a100-sxm-80gb:8x0", 2, ("NODES is 0, expected at least 1",)),
    ("clusters h100:8x1000000", 2, ("8,000,000 devices", "at most 262,144")),
    ("clusters 8xh100", 2, ("`8xh100`", "did you mean h100")),
    ("plan gpt2 --cluster 16xh100 --global-batch 8", 2, ("16 devices are h100-sxm-80gb:8x2",)),
    ("plan gpt2 --cluster h100 --global-batch 8", 2, ("one node is h100-sxm-80gb:8x1",)),
    ("plan gpt2 --cluster nope --global-batch 8", 2, ("no device `nope`", "known: a100")),
    ("plan gpt2 --cluster local:9999999 --global-batch 8", 2, ("use at most local:",)),
    ("clusters none.toml", 2, ("the cluster file `none.toml` cannot be read: no such file",)),
    ("clusters cut.toml", 2, ("`cut.toml`", "Unterminated string")),
    ("clusters unknown.toml", 2, ("`unknown.toml`: no device `h1000`", "did you mean h100")),
    ("clusters key.toml", 2, ("`key.toml`", "unknown field `node`; did you mean `nodes`?")),
    ("clusters zero.toml", 2, ("`zero.toml`", "nodes is 0, expected above 0")),
    ("clusters text.toml", 2, ("`text.toml`", "Expected `int`, got `str` - at `$.nodes`")),
    ("clusters latin.toml", 2, ("`latin.toml`", "not UTF-8")),
    ("clusters empty.toml", 2, ("`empty.toml`", "it names no `device`")),
    ("clusters localhost:4", 2, ("this machine is local:N",)),
    # The question of a plan.
    ("plan gpt2 --cluster h100:8x1 --global-batch 1k", 2, ("--global-batch 1k: expected a whole",)),
    ("plan gpt2 --cluster h100:8x1 --global-batch -8", 2, ("--global-batch -8", "from 1 to")),
    ("plan gpt2 --cluster h100:8x1 --global-batch 99999999999", 2, ("1 to 16,777,216",)),
    (f"{PLAN} --precision bf61", 2, ("no precision `bf61`", "bf16")),
    ("plan mlp --cluster v100:2x1 --global-batch 8 --precision fp8", 2, ("no fp8 arithmetic",)),
    (f"{PLAN} --attention flsh", 2, ("`flsh`; choose flash or unfused",)),
    (f"{PLAN} --memory-limit 80", 2, ("--memory-limit 80", "write 80GiB")),
    (f"{PLAN} --memory-limit 80GO", 2, ("--memory-limit 80GO", "512MB")),
    (f"{PLAN} --memory-limit 40GiB --reserve 5%", 2, ("--reserve 5%", "leave one of them out")),
    (f"{PLAN} --reserve 100%", 2, ("--reserve 100%", "below 100 %")),
    (f"{PLAN} --max-gap nan", 2, ("--max-gap nan: expected a number of at least 0",)),
    (f"{PLAN} --simpler-within 2", 2, ("--simpler-within 2", "from 0 to 1")),
    (f"{PLAN} --top 1000", 2, ("--top 1000", "from 0 to 100")),
    (f"{PLAN} --optimize-for speed", 2, ("--optimize-for speed", "throughput")),
    (f"{PLAN} --framework megatron", 2, ("`megatron`", "did you mean megatron-")),
    (f"{PLAN} --profile plan.json", 2, ("`plan.json` is not a device profile: it is a plan",)),
    (f"{PLAN} --profile none.json", 2, ("the device profile `none.json` cannot be read",)),
    (f"{PLAN} -o folder", 2, ("cannot write `folder`: it is a folder",)),
    (f"{PLAN} -o none/plan.json", 2, ("cannot write `none/plan.json`", "no folder `none`")),
    (f"{PLAN} -o a{{nul}}b", 2, ("--output", "null byte")),
    # Pins.
    (f"{PLAN} --tp two", 2, ("--tp two: expected a whole number of at least 1",)),
    (f"{PLAN} --tp 3", 1, ("3 devices", "do not divide the 2", "--tp 2")),
    (f"{PLAN} --tp 2 --dp 2", 1, ("4 devices", "without --dp")),
    (f"{PLAN} --ep 2", 1, ("--ep 2: this model has no experts",)),
    (f"{PLAN} --dp 2 --micro-batch 8", 1, ("microbatches of 16 samples", "global batch of 8")),
    (f"{PLAN} --memory-limit 1KiB", 1, ("no plan fits the memory", "too few")),
    (f"{PLAN} --schedule 1f1", 2, ("--schedule 1f1", "1f1b")),
    (f"{PLAN} --recompute all", 2, ("--recompute all: choose none, selective or full",)),
    (f"{PLAN} --zero stage2", 2, ("--zero stage2: choose 0, 1, 2, 3",)),
    (f"{PLAN} --offload cpu", 2, ("--offload cpu: choose none or optimizer",)),
    (f"{PLAN} --dispatcher deepp", 2, ("--dispatcher deepp", "deepep")),
    (f"{PLAN} --capacity-factor lots", 2, ("--capacity-factor lots", "dropless")),
    (f"{PLAN} --mtp-layers -1", 2, ("--mtp-layers -1", "at least 0")),
    (f"{PLAN} --sequence-parallel yes", 2, ("`yes` is too many",)),
    (f"{GPT} --ring --cp 1", 1, ("--ring", "raise --cp")),
    # Plans and traces that are read.
    ("show none.json", 2, ("the plan `none.json` cannot be read: no such file",)),
    ("show pln.json", 2, ("`pln.json`", "did you mean `plan.json`?")),
    ("show folder", 2, ("`folder` cannot be read: is a directory",)),
    ("show empty.json", 2, ("`empty.json` is not a plan",)),
    ("show cut.json", 2, ("`cut.json` is not a plan", "truncated")),
    ("show list.json", 2, ("`list.json` is not a plan", "`array`")),
    ("show future.json", 2, ("`future.json`", "of another version, write it anew")),
    ("show typo.json", 2, ("`typo.json`", "`globalbatch`; did you mean `global_batch`?")),
    ("show nan.json", 2, ("`nan.json`", "malformed")),
    ("show nul.json", 2, ("`nul.json`", "not UTF-8")),
    ("show a{nul}b", 2, (r"PLAN a\x00b", "null byte")),
    ("show trace.json", 2, ("`trace.json` is not a plan: it is a trace",)),
    ("show config.json", 2, ("it is the configuration of a model",)),
    ("show plan.json --commands 2", 2, ("the plan has no rank 2: it has ranks 0 to 1",)),
    ("show plan.json --commands first", 2, ("--commands first: expected a whole number",)),
    ("show plan.json plan.json --commands 0", 2, ("give one PLAN",)),
    ("show plan.json --framework torchtitn", 2, ("did you mean torchtitan",)),
    ("show plan.json --picture x.gif", 2, ("cannot draw `x.gif`", ".svg")),
    ("show plan.json --picture none/x.png", 2, ("no folder `none`",)),
    ("show plan.json plan.json --picture x.png", 2, ("give PLAN alone",)),
    ("run gpt2-small", 2, ("`gpt2-small` is a model", "millrace plan gpt2-small")),
    # Simulations.
    ("simulate look.chrome.json", 2, ("it is a trace in Chrome's form",)),
    ("simulate plan.json --cluster a100:8x1", 1, ("it has 8 devices", "made for 2")),
    ("simulate plan.json --precision fp9", 2, ("--precision fp9", "bf16")),
    ("simulate plan.json --straggler first:2", 2, ("--straggler first:2", "RANK:FACTOR")),
    ("simulate plan.json --straggler 9:2", 2, ("--straggler 9:2: the ranks are 0 to 1",)),
    ("simulate plan.json --straggler 0:-1", 2, ("--straggler 0:-1", "above 0")),
    ("simulate plan.json --jitter -1", 2, ("--jitter -1: expected a number from 0 to 1",)),
    ("simulate plan.json --jitter 10%", 2, ("--jitter 10%: expected a number",)),
    ("simulate plan.json --fidelity chunk", 2, ("--fidelity chunk", "stage")),
    ("simulate plan.json --trace plan.json", 2, ("this command reads it",)),
    ("simulate plan.json --html x.html --trace x.html", 2, ("this command writes it already",)),
    # Sweeps.
    (f"{SCALE} --nodes 0", 2, ("--nodes 0",)),
    (f"{SCALE} --nodes 1,two", 2, ("--nodes 1,two", "write 1,2,4")),
    (f"{SCALE} --global-batch -4", 2, ("--global-batch -4",)),
    (f"{SCALE} --global-batch 8/gpu", 2, ("--global-batch 8/gpu", "8/device")),
    (f"{SCALE} --network warp-9", 2, ("--network warp-9", "ndr")),
    (f"{SCALE} --cluster a100-sxm-80g:8", 2, ("--cluster a100-sxm-80g:8", "did you mean")),
    (f"{SCALE} --cluster a100-sxm-80gb:2,", 2, ("a100-sxm-80gb:2,:", "found none")),
    (f"{SCALE} --framework none-such", 2, ("--framework none-such",)),
    (f"{SCALE} --mtbf-hours 0", 2, ("--mtbf-hours 0: expected above 0",)),
    (f"{SCALE} --restart-minutes 5", 2, ("--restart-minutes 5", "--mtbf-hours")),
    (f"{SCALE} --mtbf-hours 9 --restart-minutes -5", 2, ("--restart-minutes -5: expected 0",)),
    (f"{SCALE} --mtbf-hours 9 --checkpoint-rate fast", 2, ("--checkpoint-rate", "`fast`")),
    (f"{SCALE} --price-per-gpu-hour h100:8=2", 2, ("no --cluster of this question",)),
    (f"{SCALE} --tokens lots", 2, ("--tokens lots", "15T")),
    (f"{SCALE} --worth 2", 2, ("--worth 2: expected above 0 and at most 1",)),
    (f"{SCALE} --plot picture.nope", 2, ("picture.nope", ".svg")),
    (f"{SCALE} --csv none/rows.csv", 2, ("no folder `none`",)),
    (f"{SCALE} --csv {{long}}", 2, ("aaa`: file name too long",)),
    (f"{RECOMMEND} --tokens 1Q", 2, ("--tokens 1Q", "15T")),
    (f"{RECOMMEND} --within 30", 2, ("--within 30", "30d")),
    (f"{RECOMMEND} --budget cheap", 2, ("--budget cheap", "500k")),
    (f"{RECOMMEND} --nodes none", 2, ("--nodes none", "write 1,2,4")),
    # Runs, comparisons, measurements.
    ("run trace.json", 2, ("`trace.json` is not a plan: it is a trace",)),
    ("run plan.json --steps ten", 2, ("--steps ten: expected a whole number",)),
    ("run plan.json --backend tpu", 2, ("--backend tpu", "cupy")),
    ("run plan.json --eager", 2, ("--eager", "leave it out")),
    ("run plan.json --deterministic", 2, ("--deterministic", "leave it out")),
    ("run plan.json --loopback", 2, ("--loopback", "--backend cupy")),
    ("run plan.json --data /none", 2, ("/none",)),
    ("run plan.json --weights none.npz", 2, ("`none.npz` cannot be read: no such file",)),
    ("run plan.json --weights plan.json", 2, ("`plan.json`", "numpy.savez")),
    ("run plan.json --resume", 2, ("--resume", "--checkpoint")),
    ("run plan.json --resume --checkpoint none", 2, ("no checkpoint in `none`",)),
    ("run plan.json --checkpoint-every 3", 2, ("--checkpoint-every", "--checkpoint")),
    ("run plan.json --checkpoint-minutes 3", 2, ("--checkpoint-minutes", "--checkpoint")),
    ("run plan.json --checkpoint-minutes -1 --checkpoint c", 2, ("--checkpoint-minutes -1",)),
    ("run plan.json --checkpoint-keep 0", 2, ("--checkpoint-keep",)),
    ("run plan.json --checkpoint /proc/x", 2, ("cannot save in `/proc/x`",)),
    ("run plan.json --lr -1", 2, ("--lr -1", "above 0")),
    ("compare plan.json plan.json", 2, ("`plan.json` is not a trace: it is a plan",)),
    ("compare trace.json plan.json", 2, ("`trace.json` is not a plan: it is a trace",)),
    ("compare plan.json look.chrome.json", 2, ("a trace in Chrome's form",)),
    ("compare plan.json trace.json --tolerance 20%", 2, ("--tolerance 20%: expected a number",)),
    ("compare plan.json trace.json --update-profile", 2, ("is simulated, not measured",)),
    ("compare plan.json trace.json --html trace.json", 2, ("this command reads it",)),
    ("export plan.json", 2, ("--to is missing",)),
    ("export plan.json --to megatorn", 2, ("--to megatorn", "did you mean megatron-core?")),
    ("export trace.json --to megatron-core", 2, ("it is a trace",)),
    ("import-config", 2, ("SETTINGS... is missing",)),
    ("import-config none.sh", 2, ("`none.sh` cannot be read: no such file",)),
    (f"{IMPORT} two'", 2, ("--num-layers two", "whole number")),
    (f"{IMPORT} 2' --set X", 2, ("--set X", "NAME=VALUE")),
    ("profile --ranks 0", 2, ("--ranks 0: expected a whole number of at least 1",)),
    ("profile --device tpu", 2, ("--device tpu: expected one of cpu, gpu",)),
    ("profile -o folder", 2, ("cannot write `folder`: it is a folder",)),
    ("validate none.csv", 2, ("`none.csv` cannot be read: no such file",)),
    ("validate odd.csv", 2, ("`odd.csv`", "its header lacks")),
    ("validate latin.csv", 2, ("`latin.csv`", "not UTF-8")),
    ("demo --steps 0", 2, ("--steps 0: expected a whole number of at least 6",)),
    ("serve --host 0.0.0.0", 2, ("--host", "did you mean --port?")),
    ("demo extra", 2, ("`extra` is too many", "takes no argument")),
)
