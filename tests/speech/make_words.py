"""Makes the lists of common words again: `make speech-words`. They are the first 10,000 words of wordfreq's lists."""

import gzip
import sys

import msgpack

import sources

LANGUAGES = ("en", "de", "es", "fr", "it", "nl", "pt")
COUNT = 10_000


def main() -> None:
    data = sources.wheels() / "wordfreq" / "data"
    for language in LANGUAGES:
        with gzip.open(data / f"large_{language}.msgpack.gz") as file:
            # A header, then one list for each hundredth of a decade of frequency, the most frequent first.
            _header, *bands = msgpack.load(file, raw=False)
        words = (word for band in bands for word in band)
        # Numbers and the like need no guard.
        words = [word for word in words if all(c.isalpha() or c in "'’-" for c in word)][:COUNT]
        (sources.ROOT / "assets" / "words" / f"{language}.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
