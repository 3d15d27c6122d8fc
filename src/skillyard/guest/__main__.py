"""The guest as a command, for backends that only start programs: see :mod:`.command`."""

from .command import main

main()
