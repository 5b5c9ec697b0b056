"""Classes of transformers: a configuration becomes a graph by the class that computes it.

In comes a decoded `config.json` whose `model_type` the installed transformers has a class for, out
goes the specification of its graph. Read `class_import.py` first; no weight is made, nothing is
fetched and no code of a repository is run.
"""

from millrace.models.importers.torch_export.classes.class_import import ClassRequest, class_spec

__all__ = ["ClassRequest", "class_spec"]
