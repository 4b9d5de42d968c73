"""The registry's state: its values, commands and effects, and the one function that applies a command.

Pure and deterministic, so that every implementation gives the same answers.
"""
