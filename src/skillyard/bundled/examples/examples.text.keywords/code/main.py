"""What a text is about, from the counts of its words."""

from collections import Counter
from itertools import pairwise

from runtime import blobs, log

from .stopwords import STOPWORDS
from .words import sentences, tokens

WORDS_A_MINUTE = 230


def main(args):
    text = args["text"] if "text" in args else blobs.read_text(args["blob"])
    found = analyse(text, args.get("top", 10))
    log.info(f"counted {found['words']} words")
    about = ", ".join(word for word, _ in found["keywords"][:3])
    return {"summary": f"{found['words']:,} words, about: {about or 'nothing in particular'}.", **found}


def analyse(text, top=10):
    """Counts, keywords and phrases of a text."""
    words = list(tokens(text))
    telling = Counter(word for word in words if is_telling(word))
    pairs = Counter(f"{a} {b}" for a, b in pairwise(words) if is_telling(a) and is_telling(b))
    return {
        "words": len(words),
        "sentences": sum(1 for _ in sentences(text)),
        "minutes": round(len(words) / WORDS_A_MINUTE, 1),
        "keywords": [list(item) for item in telling.most_common(top)],
        "phrases": [[phrase, count] for phrase, count in pairs.most_common(top) if count > 1],
    }


def is_telling(word):
    return len(word) > 2 and word not in STOPWORDS and not word.isdigit()
