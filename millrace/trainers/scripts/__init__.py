"""Scripts: programs that shell scripts and command lines come to, in a sandbox that starts nothing.

In come the files of a source, out come the programs that would be launched, with their arguments.
Read `sandbox.py` first, then `launched.py` (nodes and devices of a launcher's words).
"""
