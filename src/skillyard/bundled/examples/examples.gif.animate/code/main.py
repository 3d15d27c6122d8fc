"""Draw an animated GIF: shapes that go from one place to another and back."""

import imageio.v3 as imageio
import numpy
from PIL import Image, ImageDraw, ImageFont
from runtime import blobs, log

from . import motion

__all__ = ["encode", "main", "motion", "render"]

FINE = 3
"""Everything is drawn that much larger and made smaller, which gives smooth edges."""


def main(args):
    frames = render(args)
    data = encode(frames, args.get("fps", 12))
    width, height = frames[0].size
    log.info(f"drew {len(frames)} frames of {width}x{height}")
    return {
        "summary": f"A GIF of {len(frames)} frames, {width}x{height}, {len(data):,} bytes.",
        "gif_blob": blobs.write_bytes(data, "image/gif"),
        "frames": len(frames),
        "size_bytes": len(data),
    }


def render(spec):
    """One image for each frame. The last is not the first again: players go round."""
    count = spec.get("frames", 24)
    return [_frame(spec, motion.there_and_back(number / count)) for number in range(count)]


def encode(frames, fps):
    stack = numpy.stack([numpy.asarray(frame) for frame in frames])
    return imageio.imwrite("<bytes>", stack, extension=".gif", plugin="pillow", duration=1000 / fps, loop=0)


def _frame(spec, moment):
    width, height = spec.get("size", (160, 120))
    image = Image.new("RGB", (width * FINE, height * FINE), spec.get("background", "#ffffff"))
    pen = ImageDraw.Draw(image)
    for shape in spec["shapes"]:
        x, y = (FINE * value for value in motion.place(shape, moment))
        _draw(pen, shape, x, y, FINE * shape.get("size", 20))
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _draw(pen, shape, x, y, size):
    color = shape.get("color", "#d1495b")
    box = (x - size / 2, y - size / 2, x + size / 2, y + size / 2)
    if shape["kind"] == "disc":
        pen.ellipse(box, fill=color)
    elif shape["kind"] == "square":
        pen.rectangle(box, fill=color)
    else:
        pen.text((x, y), shape.get("text", ""), fill=color, font=ImageFont.load_default(size), anchor="mm")
