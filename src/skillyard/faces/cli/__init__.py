"""The command line. A command imports what it needs when it runs: client commands have 150 ms."""
