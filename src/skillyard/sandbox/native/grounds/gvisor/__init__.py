"""The gVisor backend: each sandbox is a runsc in a jail of namespaces."""
