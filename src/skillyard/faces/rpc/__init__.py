"""JSON-RPC 2.0 (skills-protocol §2, §6), whichever way its bytes travel."""

from skillyard.domain.errors import InvalidRequest, ParseError
from skillyard.faces.rpc.dispatcher import Answer, Caller, Dispatcher, Invoke, MethodInfo
from skillyard.faces.rpc.wire import CallerGone, error_object

__all__ = [
    "Answer",
    "Caller",
    "CallerGone",
    "Dispatcher",
    "InvalidRequest",
    "Invoke",
    "MethodInfo",
    "ParseError",
    "error_object",
]
