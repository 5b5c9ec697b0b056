"""Traces as others show them: one step as bars for our pictures, or all of it in Chrome's form.

Comes in: a Trace. Goes out: rows and bars of a timeline, or a document that Perfetto opens. Read
`timeline.py` first.
"""
