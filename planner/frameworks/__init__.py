"""Frameworks: what each costs and can run, a record each (`frameworks.toml`)."""
