"""Sound files of text, of which `benchmarks/malformed_kinds.py` makes others."""

from typing import Any

CLUSTER = b"""name = "mixed"
[[groups]]
device = "b200"
nodes = 2
devices_per_node = 4
inter_node = "8xndr+sharp"
[[groups]]
devices_per_node = 8
nodes = 4
[groups.device]
name = "mine"
source = "a data sheet"
memory_bytes = 80_000_000_000
memory_bandwidth_bytes_per_s = 2e12
launch_ns = 5_000
matmul_efficiency = 0.6
memory_efficiency = 0.8
[groups.device.flops_per_s]
fp32 = 19.5e12
bf16 = 312e12
[groups.intra_node]
bandwidth_bytes_per_s = 300e9
latency_ns = 3_000
source = "a data sheet"
[groups.inter_node]
bandwidth_bytes_per_s = 25e9
latency_ns = 5_000
source = "a data sheet"
[leaves]
nodes = 2
oversubscription = 2
[software]
name = "mine"
host_ns = 6_000
"""

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "_name_or_path": "someone/something",
    },
    "mixtral": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 64,
        "max_position_embeddings": 16,
        "sliding_window": None,
    },
    "gpt2": {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 8,
        "vocab_size": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    "deepseek_v3": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "moe_intermediate_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 4,
        "vocab_size": 64,
        "max_position_embeddings": 16,
    },
    "bert": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 64,
        "max_position_embeddings": 16,
        "type_vocab_size": 2,
    },
    "t5": {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": 64,
        "relative_attention_num_buckets": 8,
    },
    "vit": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "image_size": 16,
        "patch_size": 8,
        "num_channels": 3,
    },
}

LANGUAGE = """source,tier,framework,model,layers,hidden,heads,kv_heads,ffn_hidden,vocab,seq_len,\
gpu,gpus,gpus_per_node,inter_node_net,dp,tp,pp,interleave,cp,ep,zero,sequence_parallel,micro_batch,\
global_batch,recompute,precision,flash_attention,schedule,tokens_per_s_per_gpu,iteration_time_s,\
peak_mem_gb,notes
a paper,A,megatron-core,gpt-tiny,4,256,4,4,1024,1000,128,a100-sxm-80gb,2,8,,2,1,1,1,1,1,1,0,2,16,\
none,bf16,1,,,0.01,,
"a, paper",B,deepspeed,llama-x,2,256,4,2,1024,1000,128,h100-sxm-80gb,16,8,8xndr,8,2,1,1,1,1,3,1,1,\
64,full,fp16,0,1f1b,1000,,12.5,alpha=0.5
"""
DLPERF = """model,framework,version,dtype,xla,batch_per_gpu,nodes,gpus_per_node,throughput,unit,\
source_path,variant
resnet50-v1.5,OneFlow,0.2,fp32,,128,1,8,3000,images/s,a,
bert-base,NGC PyTorch,1.0,amp,,32,4,8,4000,sequences/s,b,
"""
