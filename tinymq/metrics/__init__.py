"""A broker's HTTP pages: metrics for Prometheus, and its state as JSON. Changes nothing."""
