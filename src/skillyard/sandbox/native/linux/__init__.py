"""System calls, filters of system calls and Landlock, through ctypes and the standard library."""
