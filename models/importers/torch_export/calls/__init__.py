"""Calls as traced: tables from an op's name to the function that drafts it."""
