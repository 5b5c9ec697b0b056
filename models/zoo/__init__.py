"""The zoo: models by name.

In comes a name (`gpt2-small`, `mlp`, or `package.module:function`), out goes a ModelSpec, and from
a ModelSpec a Graph. Every family is one file whose `build` writes the forward graph; `catalogue.py`
lists the names and is the file to read first.
"""
