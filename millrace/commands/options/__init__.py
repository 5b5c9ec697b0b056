"""Options that commands have in common, what they complete to, and the words that they show.

In come a command's own options, out goes a function with all of them, as the parser reads it.
Read `question_options.py` first.
"""
