"""Control groups: one for each sandbox, and the directories that hold them."""
