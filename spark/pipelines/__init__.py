"""Programs for spark-submit, on real data: see README.md beside this file."""
