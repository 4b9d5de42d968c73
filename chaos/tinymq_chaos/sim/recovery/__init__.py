"""Runs in which a majority loses its disks under load, and operators call `tinymq cluster recover`.

They break the promises of plain runs on purpose, so they have a checker of their own.
"""
