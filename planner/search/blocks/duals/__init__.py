"""Duals: block programs as sums of terms over the options of one choice or of two.

In come tables and prices; out come what options and pairs cost (`terms`), with the choices that
can be decided beside their neighbours taken out (`elimination`), and the moves of cost between
choices and pairs (`pairs`) that an ascent is made of. Read `millrace.planner.search.blocks.ascent`
first.
"""
