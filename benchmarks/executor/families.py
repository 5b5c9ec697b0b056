"""Losses of one model of every family, trained on two and four processes, against one device.

Run `python -m benchmarks.executor.families [STEPS] [--precision fp64]` from the root of the
repository.

Every model is planned with the kind of parallelism its family is known for, run for real (one
process per rank), and compared with the single-device reference, step by step. Prints a line per
run: the plan, first and last loss, the largest relative difference of a loss, and for a mixture of
experts the smallest margins between a chosen score and the next, in the run and in the reference
(a tie may fall either way). Step times, predicted and measured, are printed for interest; they mean
something only while nothing else runs.

In fp32 the order in which numbers are added differs between one device and several, and training
lets that grow from step to step; in fp64 there is no room for it.
"""

from typing import Annotated

import typer

import millrace
from millrace.executor.data import open_dataset
from millrace.executor.reference import run_reference
from millrace.models.spec import TrainingSpec
from millrace.models.zoo.catalogue import build_training

GLOBAL_BATCH, MICROBATCHES = 8, 2
TRAINING = TrainingSpec(learning_rate=1e-3, warmup_steps=5)
SEQ_LEN = 64
WITHOUT_SEQUENCE = ("vit", "resnet", "wide", "arcface")

Pins = dict[str, int | str | bool]
CASES: tuple[tuple[str, Pins, Pins], ...] = (
    ("gpt-demo", {"pp": 2}, {"dp": 2, "tp": 2}),
    ("llama-demo", {"tp": 2}, {"dp": 2, "tp": 2, "sequence_parallel": True}),
    ("mixtral-demo", {"dp": 2, "ep": 2}, {"dp": 4, "ep": 4}),
    ("deepseek-demo", {"dp": 2, "ep": 2}, {"dp": 2, "ep": 2, "pp": 2}),
    ("deepseek-v3.2-demo", {"tp": 2}, {"dp": 2, "pp": 2}),
    ("deepseek-v4-demo", {"tp": 2}, {"dp": 2, "pp": 2}),
    ("gemma4-demo", {"pp": 2}, {"dp": 2, "ep": 2, "pp": 2}),
    ("nemotron-demo", {"tp": 2}, {"dp": 2, "pp": 2}),
    ("qwen3-next-demo", {"dp": 2, "ep": 2}, {"dp": 2, "tp": 2}),
    ("kimi-linear-demo", {"cp": 2, "ring": False}, {"tp": 4}),
    ("bert-demo", {"dp": 2}, {"dp": 2, "tp": 2}),
    ("t5-demo", {"pp": 2}, {"tp": 2, "pp": 2}),
    ("vit-demo", {"tp": 2}, {"dp": 2, "pp": 2}),
    ("resnet-demo", {"dp": 2}, {"dp": 4}),
    ("wide-deep-demo", {"tp": 2}, {"tp": 4}),
    ("arcface-demo", {"tp": 2}, {"dp": 2, "tp": 2}),
)


def main(steps: Annotated[int, typer.Argument()] = 20, precision: str = "fp32") -> None:
    """Plan, run and compare every case."""
    clusters = {ranks: millrace.cluster(f"local:{ranks}") for ranks in (2, 4)}
    for model, *pinned in CASES:
        for ranks, pins in zip(clusters, pinned, strict=True):
            degrees = {"dp": 1, "tp": 1, "pp": 1} | pins
            replicas = int(degrees["dp"])
            question = {"micro_batch": GLOBAL_BATCH // MICROBATCHES // replicas} | degrees
            plan = millrace.plan(
                model,
                clusters[ranks],
                global_batch=GLOBAL_BATCH,
                precision=precision,
                seq_len=None if model.startswith(WITHOUT_SEQUENCE) else SEQ_LEN,
                training=TRAINING,
                pins=millrace.Pins.of(question),
            ).plan
            measured = millrace.run(plan, steps=steps)
            expected = run_reference(
                build_training(plan.model, plan.training, plan.batch),
                microbatches=plan.microbatches,
                steps=steps,
                dataset=open_dataset(None, plan.model, 0),
            )
            both = list(zip(measured.loss, expected.losses, strict=True))
            apart = max(abs(loss - other) / abs(other) for loss, other in both)
            words = " ".join(f"{name} {value}" for name, value in pins.items())
            line = (
                f"{model} on local:{ranks}, {words}: loss {both[0][0]:.4f} to {both[-1][0]:.4f}, "
                f"apart by {apart:.0e}"
            )
            if measured.smallest_top_k_margin is not None:
                margins = measured.smallest_top_k_margin, expected.smallest_margin
                line += ", margins {:.0e} and {:.0e}".format(*margins)
            predicted = plan.figures["step_time_s"] * 1e3
            measured_ms = measured.step_time_s * 1e3
            print(
                f"{line}; predicted {predicted:.0f} ms, measured {measured_ms:.0f} ms", flush=True
            )


if __name__ == "__main__":
    typer.run(main)
