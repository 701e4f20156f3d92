"""Load tests: workloads, demos and benchmarks that drive a cluster from outside."""
