"""The endpoints that report on a server: the live feed and the metrics for Prometheus."""
