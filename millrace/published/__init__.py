"""Published measurements against predictions.

Comes in: a CSV file of training runs that somebody measured. Goes out: what is predicted of each,
and how far that is from what was measured.

Read first `reading.py` (the layouts), `columns.py` and `notes.py` (what a row says), then
`language.py` and `named_models.py` (a row as a question and pins), `prediction.py` (a question
answered), `validation.py` (all rows), `summary.py` and `single_setting_pairs.py` (what they say
together); of memory, `memory_of_row.py` (what a row's framework has).
"""
