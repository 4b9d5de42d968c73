"""What a broker shows of itself over HTTP: metrics for Prometheus, its state as JSON. Changes nothing."""
