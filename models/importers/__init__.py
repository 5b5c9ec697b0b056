"""Importers: models described elsewhere become ModelSpecs.

In comes a file that another library wrote, out goes a ModelSpec whose family, configuration and
mathematics are those of the original. Every format has its own module or folder, whose heavy
library (where it needs one) is imported only when it is used. Beside them lies what importers of
graphs share: `patterns.py`, `attention_masks.py`, `predictions.py`, `notes.py`. Read first:
`huggingface/`.
"""
