"""Duals: block programs as sums of terms over the options of one choice or of two.

In come tables and prices; out come what options and pairs cost (`terms`), with the choices that
can be decided beside their neighbours taken out (`elimination`), and what an ascent is made of: the
moves of cost between choices and pairs (`pairs`), and the split of what readers of an edge share
(`sharing`). Read `millrace.planner.search.blocks.dual_ascent` first.
"""
