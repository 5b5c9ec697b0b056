"""Rules: what every kind of node becomes.

In come a `Lowering` and a node, out goes what is known of the node's outputs, ops having been added
to the graph. Read `node_rules.py` first (one rule per kind), then `layout_nodes.py`;
`node_patterns.py` and `attention_nodes.py` recognise what exporters spell out in several nodes.
"""
