"""The sink: rows become records, and repeats can be dropped.

Reading belongs to `read`.
"""
