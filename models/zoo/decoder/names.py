"""Names of the published decoders, with their sizes, and other names for them."""

from millrace.models.spec import Config
from millrace.models.zoo.decoder.hybrid_sizes import HYBRIDS
from millrace.models.zoo.decoder.mixture_sizes import MIXTURES
from millrace.models.zoo.decoder.releases import DEEPSEEK4, GEMMA4
from millrace.models.zoo.decoder.sizes import PLAIN

MODELS: dict[str, Config] = {**PLAIN, **MIXTURES, **HYBRIDS, **GEMMA4, **DEEPSEEK4}

ALIASES = {
    "llama-2-7b": "llama2-7b",
    "llama-2-13b": "llama2-13b",
    "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b",
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-405b": "llama3-405b",
    "llama3.1-405b": "llama3-405b",
    "mistral": "mistral-7b",
    "mixtral": "mixtral-8x7b",
    "deepseek": "deepseek-v3",
    "kimi-k2-instruct": "kimi-k2",
    "moonlight": "moonlight-16b-a3b",
    "glm-4.5-355b": "glm-4.5",
    "glm-5-744b": "glm-5",
    "glm-4.5-106b": "glm-4.5-air",
    "gpt-oss": "gpt-oss-120b",
    "minimax-m2-230b": "minimax-m2",
    "nemotron-3-nano-30b-a3b": "nemotron-3-nano",
    "nemotron-3-super-120b-a12b": "nemotron-3-super",
    "nemotron-3-ultra": "nemotron-3-ultra-550b",
    "olmo-3-32b": "olmo3-32b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",  # of the same shape (Qwen's model cards, read 2026-11)
    "llama-4-scout": "llama4-scout",
    "llama-4-maverick": "llama4-maverick",
    "gemma-2-2b": "gemma2-2b",
    "gemma-2-9b": "gemma2-9b",
    "gemma-2-27b": "gemma2-27b",
    "gemma-3-1b": "gemma3-1b",
    "gemma-3-4b": "gemma3-4b",
    "gemma-3-12b": "gemma3-12b",
    "gemma-3-27b": "gemma3-27b",
    "gemma-4-e2b": "gemma4-2b",
    "gemma-4-e4b": "gemma4-4b",
    "gemma-4-26b-a4b": "gemma4-26b",
    "gemma-4-31b": "gemma4-31b",
    "gpt-neox": "gpt-neox-20b",
    "mpt": "mpt-7b",
}
