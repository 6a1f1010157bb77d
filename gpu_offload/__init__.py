"""Running column stages on a GPU when measurement says that it pays."""
