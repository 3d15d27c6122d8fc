"""The landlock backend: Landlock, filters and user ids, where no namespace can be made."""
