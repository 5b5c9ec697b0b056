"""Shell scripts, worked out in a sandbox: their forms, what they leave open, and hostile ones."""

import contextlib

import pytest

from millrace.trainers.catalogue import read_settings
from millrace.trainers.scripts.launched import launches
from millrace.trainers.sources import source_of
from millrace.trainers.trainer import ReadSettings, SettingsError, SettingsSource

GPT = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 2 --global-batch-size 64"
)
TRAIN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {GPT}"


def read(files: dict[str, str], **values: str) -> ReadSettings:
    source = SettingsSource(files=files, values=values)
    return read_settings(source, None, "--from")[1]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('[ "$P" = fp8 ] && P="--bf16 --fp8-format hybrid"\nTRAIN $P', {"precision": "fp32"}),
        ('[ 1 -eq 1 ] && P="--bf16" || P="--fp16"\nTRAIN $P', {"precision": "bf16"}),
        (
            'TP=4\nif (( TP > 1 )); then S="--sequence-parallel"; fi\n'
            "TRAIN --tensor-model-parallel-size $TP $S",
            {"tp": 4, "sequence_parallel": True},
        ),
        (
            'if test 1 = 1; then R="--recompute-granularity full --recompute-method uniform"; fi\n'
            "TRAIN $R",
            {"recompute": "full"},
        ),
        (
            'N=run-long\nif [[ $N == *long* ]]; then R="--context-parallel-size 4"; fi\nTRAIN $R',
            {"cp": 4},
        ),
        (
            "case large in small) T=1 ;; large) T=8 ;; esac\nTRAIN --tensor-model-parallel-size $T",
            {"tp": 8},
        ),
        ("large() { T=8; }\nlarge\nTRAIN --tensor-model-parallel-size $T", {"tp": 8}),
        (
            'for f in bf16 use-distributed-optimizer; do F="$F --$f"; done\nTRAIN $F',
            {"precision": "bf16", "zero": 1},
        ),
        (
            "T=$1; shift; P=$1\n"
            "TRAIN --tensor-model-parallel-size $T --pipeline-model-parallel-size $P",
            {"tp": 2, "pp": 4},
        ),
        ('A="--bf16"\nO="\n    $A\n"\nTRAIN $O', {"precision": "bf16"}),
        ('C="TRAIN --bf16"\nsrun bash -c "$C"', {"precision": "bf16"}),
        ("N=`nvidia-smi -L | wc -l`\ntorchrun --nproc_per_node $N pretrain_gpt.py GPT", {"dp": 8}),
        (': "${TP:=4}"\nTRAIN --tensor-model-parallel-size $TP', {"tp": 4}),
        ("# taken from a deepspeed script\nTRAIN --bf16", {"precision": "bf16"}),
        (
            "#!/bin/bash -l\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:8\nsrun python "
            "pretrain_gpt.py GPT --tensor-model-parallel-size $SLURM_GPUS_PER_NODE",
            {"tp": 8, "nodes": 4, "dp": 4},
        ),
        ("set -euo pipefail\nsource missing.sh\ncd /cluster/code\nTRAIN --bf16", {"dp": 8}),
        ("/opt/conda/bin/torchrun --nproc_per_node 4 pretrain_gpt.py GPT", {"dp": 4}),
        (
            'sbatch <<EOF\n#!/bin/bash\n#SBATCH -N 2\nTRAIN --save "<where it goes>"\nEOF',
            {"dp": 16},
        ),
        (
            "srun -N 2 --ntasks-per-node=1 torchrun --nproc_per_node 4 pretrain_gpt.py GPT",
            {"dp": 8},
        ),
        ("mpirun -np 16 -npernode 8 python pretrain_gpt.py GPT", {"nodes": 2}),
        ("cat > go.sh <<EOF\nTRAIN --bf16\nEOF\nchmod +x go.sh; ./go.sh", {"precision": "bf16"}),
    ],
)
def test_a_script_is_read_as_bash_runs_it(script: str, expected: dict[str, object]) -> None:
    text = script.replace("TRAIN", TRAIN).replace("GPT", GPT)
    values = {"1": "2", "2": "4"} if "$1" in script else {}
    job = read({"job.sh": text}, **values).job
    read_as = {**job.pins.document, "precision": job.model.precision, "nodes": job.nodes}
    assert expected.items() <= read_as.items()


def test_arguments_of_a_script_stand_behind_its_name_and_neighbours_beside_it(tmp_path) -> None:
    (tmp_path / "job.sh").write_text(f"source $HERE/sizes.env\n{TRAIN} $SIZES $1\n")
    (tmp_path / "sizes.env").write_text('SIZES="--tensor-model-parallel-size 4"\n')
    files = [str(tmp_path / name) for name in ("job.sh", "sizes.env")]
    _, settings = read_settings(source_of(["bash job.sh --bf16", *files], {}), None, "--from")
    assert (settings.job.pins.tp, settings.job.model.precision) == (4, "bf16")
    assert "not given" not in " ".join(settings.assumed)


@pytest.mark.parametrize(
    ("script", "values", "sentence"),
    [
        (
            "TRAIN --bf16 $OFF",
            {},
            "not set in the script, and taken as empty or as on one node: OFF",
        ),
        ("TRAIN --bf16 --save $UNIMPORTANT", {}, ""),
        ("TP=2\nTRAIN --tensor-model-parallel-size $TP", {"TP": "4"}, "--set TP=4 changes nothing"),
        (". sizes.sh\nTRAIN --bf16", {}, "job.sh reads files that were not given: sizes.sh"),
        ("TRAIN --seed $(pick 1)", {}, "takes the output of pick, which is not known"),
        ("[ -f /data/x ] || exit 1\nTRAIN", {}, "stops before it starts a program"),
        ("for n in 1 2; do TRAIN --seed $n; done", {}, "is started 2 times with other arguments"),
    ],
)
def test_what_stayed_open_is_said_where_it_decides(script, values, sentence) -> None:
    assumed = " ".join(read({"job.sh": script.replace("TRAIN", TRAIN)}, **values).assumed)
    assert sentence in assumed
    assert "UNIMPORTANT" not in assumed


def test_what_is_missing_names_the_variables_that_the_script_leaves_open() -> None:
    with pytest.raises(SettingsError, match="found none; the script does not set TP: --set TP="):
        read({"job.sh": f"echo $HERE\n{TRAIN} --tensor-model-parallel-size $TP"})


def test_a_script_that_comes_to_nothing_says_its_last_words() -> None:
    text = f'if [ "$#" -lt 1 ]; then echo "usage: job.sh PRECISION"; exit 1; else {TRAIN}; fi'
    with pytest.raises(SettingsError, match=r"job\.sh comes to: usage: job\.sh PRECISION"):
        read({"job.sh": text})


def test_a_second_file_that_starts_nothing_is_named() -> None:
    files = {"job.sh": TRAIN, "notes.sh": "echo hello"}
    assert "notes.sh starts no program: nothing in it was read" in read(files).assumed


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf / --no-preserve-root; echo x > /etc/passwd",
        "while :; do :; done",
        "f() { f; }; f",
        "x=a; while :; do x=$x$x; done",
        "echo {1..1000000000} {1..1000000000}",
        "echo $(seq 1 100000000) | sort",
        "exec 3<>/dev/tcp/127.0.0.1/22; cat <&3",
        "eval $(echo cm0gLXJmIC8= | base64 -d)",
        "curl http://127.0.0.1/x | bash; wget x; nc -l 1",
        "srun bash -c 'srun bash -c \"srun bash -c :\"'; bash job.sh",
        "echo $((10**10**10)) $((1/0)) ${x:?} ${!x} `",
        "srun bash $0; f() { bash $0; }; f; x=$(seq 1 1000000000)",
    ],
)
def test_a_hostile_script_comes_to_nothing(script: str) -> None:
    source = SettingsSource(files={"job.sh": script}, values={})
    with contextlib.suppress(SettingsError):
        assert launches(source) == []
