"""Programs for spark-submit that run on real data. README.md beside this file describes them."""
