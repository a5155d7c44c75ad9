"""The plan of a new job: which templates, on which nodes, with which microbatches."""
