"""Numbers as the pages write them, for the tests that hold the pages to the stored results."""

NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five"}


def together(some):
    """Words or whole numbers as a list in a sentence: ``"1, 2 and 3"``."""
    *first, last = map(str, some)
    return f"{', '.join(first)} and {last}" if first else last
