"""Small tables of published runs, written by hand."""

from pathlib import Path

from millrace.published.notes import with_columns

# What a row leaves out below is as here: a small GPT on two A100 of one node.
PLAIN = {
    "source": "a paper",
    "tier": "A",
    "framework": "megatron-core",
    "model": "gpt-tiny",
    "layers": "4",
    "hidden": "256",
    "heads": "4",
    "kv_heads": "4",
    "ffn_hidden": "1024",
    "vocab": "1000",
    "seq_len": "128",
    "gpu": "a100-sxm-80gb",
    "gpus": "2",
    "gpus_per_node": "8",
    "inter_node_net": "",
    "dp": "2",
    "tp": "1",
    "pp": "1",
    "interleave": "1",
    "cp": "1",
    "ep": "1",
    "zero": "1",
    "sequence_parallel": "0",
    "micro_batch": "2",
    "global_batch": "16",
    "recompute": "none",
    "precision": "bf16",
    "flash_attention": "1",
    "schedule": "",
    "tokens_per_s_per_gpu": "",
    "iteration_time_s": "0.01",
    "peak_mem_gb": "",
    "notes": "",
}

# A GPT of 1.1 billion parameters on one node.
BILLION = PLAIN | {
    "line": "2",
    "model": "gpt-1b",
    "layers": "24",
    "hidden": "1920",
    "heads": "20",
    "kv_heads": "20",
    "ffn_hidden": "7680",
    "vocab": "50257",
    "seq_len": "1024",
    "gpus": "8",
    "dp": "4",
    "tp": "2",
    "sequence_parallel": "1",
    "global_batch": "64",
    "iteration_time_s": "1.5",
}

DLPERF = {
    "model": "resnet50-v1.5",
    "framework": "OneFlow",
    "version": "0.2.0",
    "dtype": "amp",
    "xla": "0",
    "batch_per_gpu": "32",
    "nodes": "1",
    "gpus_per_node": "1",
    "throughput": "1000",
    "unit": "samples_per_s",
    "speedup_reported": "",
    "source_path": "",
    "variant": "",
}

# A mixture of the zoo's on eight H100, as a recipe prints it.
NAMED = {
    "model": "mixtral-demo",
    "gpu": "H100",
    "count": "8",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "ep": "4",
    "etp": "",
    "vp": "",
    "fsdp": "",
    "mbs": "1",
    "gbs": "16",
    "seq": "128",
    "precision": "bf16",
    "tflops_per_gpu": "",
    "tokens_per_s_per_gpu": "",
    "step_time_s": "0.01",
    "peak_mem_gb": "",
    "kind": "pretrain",
    "quality": "tuned",
    "recompute": "",
    "dispatcher": "",
    "layout": "",
    "source_file": "NVIDIA/Megatron-LM(dev):examples/moe_recipes/some.yaml",
    "notes": "",
}


def row(**changed: str) -> dict[str, str]:
    """A row of the large GPT with some columns changed, as it is read."""
    return with_columns(BILLION | changed)


def written(path: Path, *rows: dict[str, str], plain: dict[str, str] = PLAIN) -> Path:
    """Write rows that change some columns of a plain one; returns the path."""
    lines = [",".join(plain)]
    lines += [",".join((plain | row).values()) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path
