"""What the stages of a pipeline do to a batch."""
