"""``python -m skillyard`` is ``skillyard``."""

from skillyard.faces.cli.main import main

main()
