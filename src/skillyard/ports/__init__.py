"""The Protocols that the engine needs and that backends and stores implement."""
