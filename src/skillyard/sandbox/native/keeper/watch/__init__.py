"""The watch of a keeper: what sandboxes hold, and the end of those that hold too much."""
