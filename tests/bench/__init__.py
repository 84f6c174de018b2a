"""Measurements: the speed (`python -m tests.bench`), the files that a call enters, and the lines of code."""
