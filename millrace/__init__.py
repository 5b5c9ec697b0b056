"""Millrace's front door: the command line, the Python API and the reports.

In come names, files and flags; out go documents, tables and pages. Nothing is decided here: the
verbs `build`, `search`, `compile`, `simulate`, `execute` and `compare` (millrace/api.py) call the
packages that own them, and each command (millrace/commands/) prints what its verb returned.
Read `millrace/cli.py` first, then the command you came for.
"""

__version__ = "0.1.0"
