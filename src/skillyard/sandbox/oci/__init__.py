"""The oci backend: containers of Docker and Podman with an agent inside."""
