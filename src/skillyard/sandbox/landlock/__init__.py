"""The landlock backend: warm interpreters forked behind Landlock, seccomp and user ids, where namespaces are closed."""
