"""The benchmark of the project: what ``skillyard bench`` measures, others beside it, and the project's budget."""
