"""Where a shape is: moments and progress are numbers from 0 to 1."""

import math


def there_and_back(turn):
    """A moment that goes up to 1 in the first half of a turn and down again in the second."""
    return 1 - abs(1 - 2 * turn)


def place(shape, moment):
    start = shape["from"]
    end = shape.get("to", start)
    progress = EASES[shape.get("ease", "in-out")](moment)
    return tuple(a + (b - a) * progress for a, b in zip(start, end, strict=True))


def _bounce(moment):
    """A ball that is let fall: ever lower arcs."""
    return 1 - abs(math.cos(2.5 * math.pi * moment)) * (1 - moment)


EASES = {
    "none": lambda moment: moment,
    "in-out": lambda moment: (1 - math.cos(math.pi * moment)) / 2,
    "bounce": _bounce,
}
