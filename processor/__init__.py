"""How events are processed: pipelines, stages, shards, commits, workers and nodes."""
