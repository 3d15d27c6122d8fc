"""The native backend: warm interpreters forked into namespaces of Linux."""
