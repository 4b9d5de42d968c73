"""The options of the source and the sink, checked as a whole, and what SQL tables pass.

Pure: no cluster is asked.
"""
