"""What runs a plan or a pipeline: this process, or a runner of Beam and its servers."""
