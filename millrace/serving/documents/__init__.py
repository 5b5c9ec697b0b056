"""Documents that the page shows: the catalogue, a plan, one simulated step.

Comes in: a plan, and what was simulated of it. Goes out: values that JSON has. Read first
`plan_documents.py`.
"""
