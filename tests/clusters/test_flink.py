"""Beam's Flink runner: a cluster inside the job server, and a real one of several processes."""
