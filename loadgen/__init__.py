"""Load generation and judgement, from outside the processor."""
