"""System calls, their filters, and Landlock, through ctypes and the standard library."""
