"""The native backend: warm interpreters forked into namespaces, on Linux, with nothing but system calls."""
