"""The native backend's ground: namespaces, control groups and Landlock."""
