"""Scripts: what shell scripts and command lines would start, worked out and never run.

In comes the text of a script, out come the words of every command that it reaches. Read
`shell_script.py` first, then `launched.py` (nodes and devices of a launcher's words).
"""
