"""The entrypoint: a function that takes the args object and returns a small JSON object."""

from runtime import log


def main(args):
    text = args["text"]
    log.info(f"working on {len(text)} characters")
    return {"summary": f"The text has {len(text)} characters.", "length": len(text)}
