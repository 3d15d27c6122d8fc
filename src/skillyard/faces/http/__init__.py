"""HTTP: ``/rpc``, ``/blobs``, the probes and the metrics (skills-protocol §2, §11)."""

from skillyard.faces.http.app import HttpLimits, HttpMeter, create_app
from skillyard.faces.http.blobs import BlobAccess
from skillyard.faces.http.guard import Bearer, Everybody, Hosts, is_loopback, principal_of
from skillyard.faces.http.lifecycle import Lifecycle, Phase

__all__ = [
    "Bearer",
    "BlobAccess",
    "Everybody",
    "Hosts",
    "HttpLimits",
    "HttpMeter",
    "Lifecycle",
    "Phase",
    "create_app",
    "is_loopback",
    "principal_of",
]
