"""Examples of commands: below each page of help, and in docs/cli.md.

Each is what it does and the line that does it, made of names that exist.
"""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "demo": (
        ("the whole way on this machine", "millrace demo"),
        (
            "two processes, fewer steps, a page to look at",
            "millrace demo --ranks 2 --steps 20 -o demo",
        ),
    ),
    "serve": (
        ("the page, in the browser", "millrace serve --open"),
        ("on a port of one's choice", "millrace serve --port 9000"),
    ),
    "plan": (
        (
            "two nodes of H100, everything left to the search",
            "millrace plan llama3-8b --cluster h100:8x2 --global-batch 256 -o plan.json",
        ),
        (
            "what is decided is pinned, and who runs it is said",
            "millrace plan gpt2-medium --cluster a100:8x1 --global-batch 128 --tp 2 --zero 3 "
            "--framework torchtitan",
        ),
        (
            "for this machine, with the reasons for each choice",
            "millrace plan gpt-demo --cluster local:2 --global-batch 16 --explain -o small.json",
        ),
    ),
    "show": (
        ("stages, layouts and memory", "millrace show plan.json"),
        ("its schedule as a picture", "millrace show plan.json --picture step.svg --of schedule"),
        ("the difference of two plans", "millrace show plan.json other.json"),
    ),
    "improve": (
        (
            "what to change first in a script that takes 6.1 s a step on H100",
            "millrace improve train_llama3_8b.sh --cluster h100:8x4 --measured 6.1",
        ),
        ("the same of an exported plan", "millrace improve titan --changes-only"),
        (
            "your own files with the best settings in them",
            "millrace improve ds_config.json run.sh --cluster h100:8x2 --write better",
        ),
    ),
    "export": (
        ("Megatron-LM's launch script of a plan", "millrace export plan.json --to megatron-core"),
        ("all its files in a folder", "millrace export plan.json --to torchtitan -o titan"),
    ),
    "import-config": (
        (
            "what a script trains, and how",
            "millrace import-config train_llama3_8b.sh --nodes 4 --set vocab_size=128256",
        ),
        (
            "a command line as a plan, to simulate and to compare",
            "millrace import-config 'torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py "
            "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
            "--max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 4 "
            "--global-batch-size 256 --bf16 --tensor-model-parallel-size 2' "
            "--cluster a100:8x2 -o job.json",
        ),
    ),
    "scale": (
        (
            "one to four nodes of two kinds, on two networks",
            "millrace scale gpt2-medium --cluster a100:8,h100:8 --nodes 1,2,4 --global-batch 128 "
            "--network ndr,roce-25",
        ),
        (
            "a batch that grows with the devices, and one's own price",
            "millrace scale gpt2-small --cluster h100:8 --nodes 1,2,4 --global-batch 8/device "
            "--price-per-gpu-hour 2.20 --tokens 1e10 --plot scale.svg",
        ),
    ),
    "recommend": (
        (
            "the cheapest cluster that ends in 30 days",
            "millrace recommend llama3-8b --cluster h100:8,a100:8 --tokens 1T --within 30d "
            "--nodes 8,16",
        ),
        (
            "the fastest for the money, of two sizes",
            "millrace recommend gpt2-medium --cluster h100:8 --tokens 300B --budget 20k "
            "--nodes 1,2",
        ),
    ),
    "simulate": (
        (
            "a slow rank, and a page about the step",
            "millrace simulate plan.json --straggler 5:1.3 --html step.html",
        ),
        (
            "the same plan on another cluster of as many devices",
            "millrace simulate plan.json --cluster a100:8x2",
        ),
        (
            "a timeline for Perfetto",
            "millrace simulate plan.json --trace step.chrome.json",
        ),
    ),
    "run": (
        ("on this machine's CPUs", "millrace run small.json --steps 20 --trace run.json"),
        (
            "with the state saved every 10 steps, to --resume from",
            "millrace run small.json --steps 40 --checkpoint state --checkpoint-every 10",
        ),
        ("on this machine's GPUs", "millrace run plan.json --backend cupy"),
    ),
    "compare": (
        ("where prediction and run differ", "millrace compare small.json run.json"),
        (
            "for a script: 1 where the step time is off by more than 20 %",
            "millrace compare small.json run.json --tolerance 0.2 --json",
        ),
    ),
    "profile": (
        ("this machine's cores, for local:N", "millrace profile"),
        ("two processes, into a file", "millrace profile --ranks 2 -o machine.json"),
    ),
    "validate": (
        ("a table of published runs", "millrace validate runs.csv"),
        ("with a picture", "millrace validate runs.csv --plot errors.svg"),
    ),
    "models": (
        ("all names", "millrace models"),
        ("two of them, at another length", "millrace models gpt2-small llama3-8b --seq-len 1024"),
    ),
    "clusters": (
        ("all devices and fabrics", "millrace clusters"),
        ("one cluster, level by level", "millrace clusters h100:8x16"),
    ),
}


def markdown(command: str) -> str:
    """Examples of a command as a block of a page, empty where there are none."""
    if command not in EXAMPLES:
        return ""
    lines = (f"# {aim}\n{line}" for aim, line in EXAMPLES[command])
    return "**Examples**:\n\n```sh\n" + "\n".join(lines) + "\n```"
