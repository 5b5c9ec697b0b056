"""Pictures: a plan, its schedule and memory, scaling, the frontier of time and cost.

Comes in: a plan, or the rows of a sweep. Goes out: a `Picture`, which is a file (PNG, SVG, PDF or a
page) or stands in a notebook. All have the colours of `millrace/palette.py`; matplotlib (`pip
install '.[plot]'`) is imported here alone. Read first `picture_file.py`, then
`schedule_picture.py`.
"""
