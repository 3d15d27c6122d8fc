"""The microvm backend: one QEMU machine with a kernel of its own for each sandbox."""
