"""Topics as tables: a fixed range of records for Arrow, Polars and DuckDB, of which an engine reads what it asks for.

Here: planning of such ranges, and the bridges to the engines. Fetching is the readers' (consume). Polars and DuckDB are
extras, and are imported by the call that needs them.
"""
