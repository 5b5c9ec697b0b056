"""The commands, one file per group.

In come flags and names, out goes one answer each, as text or as one JSON document. Every file has
a `register(app)` that adds its commands; what they do lies in the verbs of `millrace/api/`.
Read `catalogues.py` first: it holds the two smallest commands.
"""
